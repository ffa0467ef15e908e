// Defines a Device whose memory is host memory. It has only the kernels of OpRow::gpu, so that all ops of the library run
// on the host. It shows whether a program treats device memory correctly, as a GPU would require. Copies and transfers
// happen as early or as late as core/device.h allows.
#pragma once

#include "core/device.h"
#include "core/op.h"
#include "gpu/device.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace rg {

class HostDevice : public Device {
public:
    std::string name() const override { return "host device"; }
    void* allocate(size_t bytes) override {
        const std::lock_guard lock(mutex_);
        RG_CHECK(bytes <= memory_left, name(), ": expected ", bytes, " bytes of memory, got ", memory_left);
        void* const block = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
        std::memset(block, 0xFF, bytes); // floats are NaN until they are written
        memory_left -= sizes_[block] = bytes;
        return block;
    }
    void release(void* block) noexcept override {
        finish_uploads();
        const std::lock_guard lock(mutex_);
        memory_left += sizes_.extract(block).mapped();
        std::free(block);
    }
    size_t free_bytes() override { return memory_left; }
    std::shared_ptr<void> pin(void* memory, size_t bytes) override {
        const std::lock_guard lock(mutex_);
        pinned_[static_cast<std::byte*>(memory)] = bytes;
        return {memory, [this](void* begin) {
                    const std::lock_guard lock_again(mutex_);
                    pinned_.erase(static_cast<std::byte*>(begin));
                }};
    }
    void upload(void* to, const void* from, size_t bytes) override { // copies as late as allowed
        uploaded += bytes;
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
    void copy(void* to, const void* from, size_t bytes) override {
        check_place(from, bytes, Trip::Place::device);
        finish_uploads(), std::memcpy(to, from, bytes);
    }
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
    void transfer(void* to, const void* from, size_t bytes) override {
        if (transfer_fails) fail(name(), ": expected a copy, got a planted error");
        check_place(to, bytes, Trip::Place::host);
        if (is_pinned(static_cast<const std::byte*>(from), bytes)) from_pinned += bytes;
        std::memcpy(to, from, bytes);
    }
    void sum(std::span<std::byte* const>, std::span<std::byte* const>, size_t) override { fail("expected no sum"); }
    bool shares = true, maps = true;
    std::atomic<bool> transfer_fails = false;          // a loader's thread reads it
    size_t memory_left = size_t{1} << 40, uploaded = 0; // memory_left: that allocate() can still return
    std::atomic<size_t> from_pinned = 0;               // number of bytes of pinned memory that transfer() has copied
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
    bool is_pinned(const std::byte* from, size_t bytes) {
        const std::lock_guard lock(mutex_);
        return std::ranges::any_of(
            pinned_, [&](const auto& block) { return from >= block.first && from + bytes <= block.first + block.second; });
    }
    struct Trip;
    std::vector<std::function<void()>> late_;
    mutable std::vector<std::function<void()>> uploads_;
    std::mutex mutex_;              // protects the following and memory_left
    std::map<void*, size_t> sizes_; // of the allocated blocks
    std::map<const std::byte*, size_t> pinned_;
    std::vector<const Trip*> trips_;
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
              places(ends.size()) {
            const std::lock_guard lock(owner.mutex_);
            owner.trips_.push_back(this);
        }
        ~Trip() override {
            const std::lock_guard lock(owner.mutex_);
            std::erase(owner.trips_, this);
        }
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
    /// Throws Error if device memory overlaps a chunk of a trip without host memory that is at another place.
    void check_place(const void* memory, size_t bytes, Trip::Place place) {
        const std::lock_guard lock(mutex_);
        const auto* const first = static_cast<const std::byte*>(memory);
        for (const Trip* const trip : trips_)
            for (size_t chunk = 0, begin = 0; chunk < trip->ends.size() && !trip->host; begin = trip->ends[chunk++])
                RG_CHECK(first >= trip->device + trip->ends[chunk] || first + bytes <= trip->device + begin ||
                             trip->places[chunk] == place,
                         name(), ": expected chunk ", chunk, " at place ", int(place), " of its trip, got ",
                         int(trip->places[chunk]));
    }
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
