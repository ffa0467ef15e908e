// A device whose kernels run on the executor: memory that the program must not touch, and work that is only right if
// it was brought there. What holds for it holds for a GPU, as far as the program's side goes.
#pragma once

#include "core/device.h"
#include "gpu/device.h"
#include "gpu/kernels.h"

#include <cstdlib>
#include <cstring>
#include <utility>

namespace rg {

class ExecutorDevice : public Device {
public:
    std::string name() const override { return "the executor"; }
    void* allocate(size_t bytes) override {
        void* const memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
        std::memset(memory, 0xFF, bytes); // NaN
        return memory;
    }
    void release(void* memory) noexcept override { std::free(memory); }
    void upload(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
    void download(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
    void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
    std::unique_ptr<RoundTrip> round_trip(void* here, void* there, std::vector<size_t> ends) override {
        return std::make_unique<Trip>(static_cast<std::byte*>(here), static_cast<std::byte*>(there), std::move(ends));
    }
    Kernel kernel(Op op) const override { return gpu_on_host::kernel(op); }
    void synchronize() override {}

    std::unique_ptr<Graph> capture(const std::function<void()>& work) override {
        struct Replay final : Graph {
            explicit Replay(ExecutorDevice& device, std::function<void()> work) : owner(device), f(std::move(work)) {}
            void launch() override { f(), ++owner.launches; }
            ExecutorDevice& owner;
            std::function<void()> f;
        };
        if (captures == Captures::fail) fail("the executor: a launch was refused");
        return captures == Captures::none ? nullptr : std::make_unique<Replay>(*this, work);
    }
    enum class Captures { work, none, fail } captures = Captures::work;
    int launches = 0; // of graphs

private:
    /// Comes as late and goes as early as it may: a piece that is on its way is NaN here.
    struct Trip final : RoundTrip {
        Trip(std::byte* here_, std::byte* there_, std::vector<size_t> ends_)
            : here(here_), there(there_), ends(std::move(ends_)), is_here(ends.size()) {}
        void fetch() override { std::memset(here, 0xFF, ends.back()); }
        void wait(size_t piece) override {
            RG_CHECK(!is_here[piece], "the executor: piece ", piece, " is here already");
            std::memcpy(here + begin(piece), there + begin(piece), ends[piece] - begin(piece));
            is_here[piece] = true;
        }
        void put_back(size_t piece) override {
            RG_CHECK(is_here[piece], "the executor: piece ", piece, " is not here");
            std::memcpy(there + begin(piece), here + begin(piece), ends[piece] - begin(piece));
            std::memset(here + begin(piece), 0xFF, ends[piece] - begin(piece));
            is_here[piece] = false;
        }
        size_t begin(size_t piece) const { return piece == 0 ? 0 : ends[piece - 1]; }
        std::byte *here, *there;
        std::vector<size_t> ends;
        std::vector<bool> is_here;
    };
};

/// In its scope, programs find these GPUs.
class GpusInPlace {
public:
    explicit GpusInPlace(gpu::Gpus others) : before_(std::exchange(gpu::gpus(), others)) {}
    ~GpusInPlace() { gpu::gpus() = before_; }
    GpusInPlace(const GpusInPlace&) = delete;
    GpusInPlace& operator=(const GpusInPlace&) = delete;

private:
    gpu::Gpus before_;
};

/// One, for all ranks to share.
inline constexpr gpu::Gpus kExecutorGpus{
    [] {
        return gpu::Found{{"executor"}, {}};
    },
    [](int) -> std::unique_ptr<Device> { return std::make_unique<ExecutorDevice>(); }};

} // namespace rg
