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
    void download(void* to, const void* from, size_t bytes, bool more) override { // as late as it may
        late_.push_back([=] { std::memcpy(to, from, bytes); });
        if (more) return;
        for (const auto& copy : late_) copy();
        late_.clear();
        ++waits;
    }
    void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
    std::unique_ptr<RoundTrip> round_trip(void* here, void* there, std::vector<size_t> ends) override {
        return std::make_unique<Trip>(*this, static_cast<std::byte*>(here), static_cast<std::byte*>(there),
                                      std::move(ends));
    }
    Kernel kernel(Op op) const override { return ++ops, gpu_on_host::kernel(op); }
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
    int launches = 0;     // of graphs
    int waits = 0;        // for downloads
    mutable long ops = 0; // that were started
    std::function<void(size_t piece)> leaves = [](size_t) {};

private:
    std::vector<std::function<void()>> late_;
    /// Leaves as early and comes as late as it may, and goes back at once: a piece is NaN wherever it may not be used.
    struct Trip final : RoundTrip {
        enum class Piece : uint8_t { there, on_its_way, here };
        Trip(ExecutorDevice& owner_, std::byte* here_, std::byte* there_, std::vector<size_t> ends_)
            : owner(owner_), here(here_), there(there_), ends(std::move(ends_)), way(ends.back()), at(ends.size()) {}
        void fetch(size_t piece) override { move(piece, Piece::there, there, way.data()), owner.leaves(piece); }
        void wait(size_t piece) override { move(piece, Piece::on_its_way, way.data(), here); }
        void put_back(size_t piece) override { move(piece, Piece::here, here, there); }
        void move(size_t piece, Piece from_place, std::byte* from, std::byte* to) {
            RG_CHECK(at[piece] == from_place, "the executor: expected piece ", piece, " at place ", int(from_place),
                     " of its trip, got ", int(at[piece]));
            const size_t begin = piece == 0 ? 0 : ends[piece - 1], bytes = ends[piece] - begin;
            std::memcpy(to + begin, from + begin, bytes);
            std::memset(from + begin, 0xFF, bytes);
            at[piece] = Piece((int(from_place) + 1) % 3);
        }
        ExecutorDevice& owner;
        std::byte *here, *there;
        std::vector<size_t> ends;
        std::vector<std::byte> way;
        std::vector<Piece> at;
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
