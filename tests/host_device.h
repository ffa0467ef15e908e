// Defines a Device whose memory is host memory. It has only the kernels of OpRow::gpu, so that all ops of the library run
// on the host. It shows whether a program treats device memory correctly, as a GPU would require. Copies and transfers
// happen as early or as late as core/device.h allows.
#pragma once

#include "core/device.h"
#include "core/op.h"
#include "gpu/device.h"

#include <cstdlib>
#include <cstring>
#include <utility>

namespace rg {

class HostDevice : public Device {
public:
    std::string name() const override { return "host device"; }
    void* allocate(size_t bytes) override {
        void* const memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
        std::memset(memory, 0xFF, bytes); // floats are NaN until they are written
        return memory;
    }
    void release(void* memory) noexcept override { finish_uploads(), std::free(memory); }
    void upload(void* to, const void* from, size_t bytes) override { // copies as late as allowed
        const auto* const first = static_cast<const std::byte*>(from);
        uploads_.push_back(
            [to, values = std::vector(first, first + bytes)] { std::memcpy(to, values.data(), values.size()); });
    }
    void download(void* to, const void* from, size_t bytes, bool more) override { // copies as late as allowed
        finish_uploads();
        late_.push_back([=] { std::memcpy(to, from, bytes); });
        if (more) return;
        for (const auto& copy : late_) copy();
        late_.clear();
        ++waits;
    }
    void copy(void* to, const void* from, size_t bytes) override { finish_uploads(), std::memcpy(to, from, bytes); }
    std::unique_ptr<RoundTrip> round_trip(void* host, void* device, std::vector<size_t> ends) override {
        return std::make_unique<Trip>(*this, static_cast<std::byte*>(host), static_cast<std::byte*>(device),
                                      std::move(ends));
    }
    // Devices of one process share memory as devices of several processes would, since the ranks are threads here.
    std::string share(const void* memory) override {
        if (!shares) fail(name(), ": expected memory to share, got a planted error");
        return std::to_string(reinterpret_cast<uintptr_t>(memory));
    }
    std::shared_ptr<std::byte> open_shared(const std::string& handle) override {
        if (!maps) fail(name(), ": expected memory of another device, got a planted error");
        ++mapped;
        return {reinterpret_cast<std::byte*>(std::stoull(handle)), [this](std::byte*) { --mapped; }};
    }
    void transfer(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
    void sum(std::span<std::byte* const>, std::span<std::byte* const>, size_t) override { fail("expected no sum"); }
    bool shares = true, maps = true;
    int mapped = 0; // number of existing mappings of other devices' memory
    Kernel kernel(Op op) const override { return ++ops, finish_uploads(), op->gpu; }
    void synchronize() override { finish_uploads(); }

    std::unique_ptr<KernelGraph> capture(const std::function<void()>& work) override {
        struct Replay final : KernelGraph {
            explicit Replay(HostDevice& device, std::function<void()> work) : owner(device), f(std::move(work)) {}
            void launch() override { f(), ++owner.launches; }
            HostDevice& owner;
            std::function<void()> f;
        };
        if (captures == Captures::fail) fail(name(), ": expected a graph, got a planted error");
        return captures == Captures::none ? nullptr : std::make_unique<Replay>(*this, work);
    }
    enum class Captures { work, none, fail } captures = Captures::work;
    int launches = 0;                                         // number of graph launches
    int waits = 0;                                            // number of waits for downloads
    mutable long ops = 0;                                     // number of started ops
    std::function<void(size_t chunk)> leaves = [](size_t) {}; // called when a chunk leaves the device

private:
    void finish_uploads() const {
        for (const auto& upload : std::exchange(uploads_, {})) upload();
    }
    std::vector<std::function<void()>> late_;
    mutable std::vector<std::function<void()>> uploads_;
    /// Copies a chunk from the device as early as allowed, to host memory as late as allowed, and back at once. A chunk
    /// is NaN in each memory where nothing may use it.
    struct Trip final : RoundTrip {
        enum class Place : uint8_t { device, in_flight, host };
        Trip(HostDevice& owner_, std::byte* host_, std::byte* device_, std::vector<size_t> ends_)
            : owner(owner_),
              host(host_),
              device(device_),
              ends(std::move(ends_)),
              in_flight(ends.back()),
              places(ends.size()) {}
        void download(size_t chunk) override {
            owner.finish_uploads();
            move(chunk, Place::device, device, in_flight.data());
            owner.leaves(chunk);
        }
        void wait(size_t chunk) override { move(chunk, Place::in_flight, in_flight.data(), host); }
        void upload(size_t chunk) override { move(chunk, Place::host, host, device); }
        /// Moves a chunk from from_place to its next place; throws Error if it is elsewhere. Without host memory, the
        /// values stay where they are, and only the place changes.
        void move(size_t chunk, Place from_place, std::byte* from, std::byte* to) {
            RG_CHECK(places[chunk] == from_place, owner.name(), ": expected chunk ", chunk, " at place ", int(from_place),
                     " of its trip, got ", int(places[chunk]));
            places[chunk] = Place((int(from_place) + 1) % 3);
            if (!host) return;
            const size_t begin = chunk == 0 ? 0 : ends[chunk - 1], bytes = ends[chunk] - begin;
            std::memcpy(to + begin, from + begin, bytes);
            std::memset(from + begin, 0xFF, bytes);
        }
        HostDevice& owner;
        std::byte *host, *device;
        std::vector<size_t> ends;
        std::vector<std::byte> in_flight;
        std::vector<Place> places;
    };
};

/// Until the end of its scope, programs find and open GPUs by the functions `others`.
class GpusInPlace {
public:
    explicit GpusInPlace(gpu::GpuDiscovery others) : before_(std::exchange(gpu::gpu_discovery(), others)) {}
    ~GpusInPlace() { gpu::gpu_discovery() = before_; }
    GpusInPlace(const GpusInPlace&) = delete;
    GpusInPlace& operator=(const GpusInPlace&) = delete;

private:
    gpu::GpuDiscovery before_;
};

} // namespace rg
