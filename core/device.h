// Defines Device: the interface of a GPU or another processor with its own memory and its own kernels for ops.
//
// Core does not know CUDA. A program puts a device into the Context; then new tensors are in device memory, and the
// device runs the ops in order while the program goes on. The program reads and writes values through copies
// (Tensor::to_host(), Tensor::copy_from()). A copy takes place after all ops that were started before it.
#pragma once

#include "core/base.h"
#include "core/clock.h"
#include "core/scope.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace rg {

struct Call;
struct OpRow;
using Kernel = void (*)(const Call&);

/// Peak rates of a device: floating-point operations per second, and bytes read or written per second. For a GPU,
/// `flops` is the rate of its tensor cores in bf16, where a multiply-add counts as two operations. An f32 product takes
/// three times as long as a bf16 product, since it consists of three of them.
struct Rates {
    double flops = 0, bytes = 0;
};

/// A shared_ptr should own a device: each tensor on it then shares the ownership, so the device lives as long as its
/// tensors. Otherwise it must outlive them.
class Device : public std::enable_shared_from_this<Device> {
public:
    virtual ~Device() = default;
    /// Returns a text like "NVIDIA H200 (sm_90, 139 GiB, hopper kernels)", for messages.
    virtual std::string name() const = 0;

    /// Returns `bytes` bytes of device memory, aligned to 256 bytes. Throws Error if not enough memory is left. The
    /// caller gives the memory back with release().
    virtual void* allocate(size_t bytes) = 0;
    virtual void release(void* memory) noexcept = 0;
    /// Returns about how many bytes allocate() can still return in all.
    virtual size_t free_bytes() = 0;
    /// Pins host memory until the result is destroyed: copies of pinned memory are faster. Does nothing if the system
    /// does not allow it.
    virtual std::shared_ptr<void> pin(void* memory, size_t bytes) = 0;
    /// Copies host memory to device memory, before all ops that are started later. May return before the copy is done,
    /// but the caller may then already change the memory at `from`.
    virtual void upload(void* to, const void* from, size_t bytes) = 0;
    virtual void copy(void* to, const void* from, size_t bytes) = 0;
    /// Copies device memory to host memory, after all ops that were started before. Blocks until the copy is done. With
    /// `more`, it may return before the copy is done; the next download without `more` also waits for this copy.
    virtual void download(void* to, const void* from, size_t bytes, bool more = false) = 0;

    /// Moves chunks of device memory to host memory and back, while ops and the transfers of other chunks run. Example:
    ///
    ///     start_ops(), trip->download(0), start_more_ops(), trip->download(1);
    ///     for (size_t i = 0; i < 2; ++i) trip->wait(i), change(i), trip->upload(i);
    ///
    /// download() sees the results of all ops that were started before it. Ops that are started after upload() get the
    /// changed chunk. Ops that are started between download() and upload() of a chunk must not use that chunk. wait()
    /// blocks until the chunk is in host memory. The program may use that memory only between wait() and upload(). Any
    /// thread may call wait().
    class RoundTrip {
    public:
        virtual ~RoundTrip() = default;
        virtual void download(size_t chunk) = 0;
        virtual void wait(size_t chunk) = 0;
        virtual void upload(size_t chunk) = 0;
    };
    /// Returns a RoundTrip between the memory at `host` and the memory at `device`. Chunk i consists of the bytes
    /// [ends[i - 1], ends[i]); chunk 0 starts at byte 0. Both memories must outlive the result. If `host` is null,
    /// nothing is copied: wait() only blocks until the device has computed the chunk. Then sum() or transfer() may
    /// change it.
    virtual std::unique_ptr<RoundTrip> round_trip(void* host, void* device, std::vector<size_t> ends) = 0;

    /// Lets other processes on this machine map `memory`, which comes from allocate(). Returns the handle that they
    /// pass to open_shared(). Throws Error if the device cannot share its memory.
    virtual std::string share(const void* memory) = 0;
    /// Maps device memory that another process has shared, so that this device can read and write it. `handle` is the
    /// result of share() in that process. Throws Error if that is not possible. The memory is mapped until the result
    /// is destroyed. The other process must not release it before.
    virtual std::shared_ptr<std::byte> open_shared(const std::string& handle) = 0;
    /// Adds the f32 vectors of `count` values at `from` in their order, and writes the sum to all of `to`; a target may
    /// be a source, too. There are at most kMostVectors of each, aligned to 16 bytes, in this device's memory or in
    /// memory of open_shared(). Blocks until the sum is written, while ops go on.
    virtual void sum(std::span<std::byte* const> from, std::span<std::byte* const> to, size_t count) = 0;
    /// Copies device memory to host memory or back. Blocks until the copy is done, while ops go on. Several threads may
    /// call this at the same time.
    virtual void transfer(void* to, const void* from, size_t bytes) = 0;
    static constexpr size_t kMostVectors = 64;

    /// Returns the kernel of an op, or null if the device has none: then the op runs on the host (see run_on_host()).
    /// The kernel takes tensors in device memory and may return before its work is done. A plan may round filters to
    /// bf16 (round_filters() in fuse.cpp), so convolution kernels for bf16 images must take filters in f32 and in bf16.
    /// Kernels that read the statistics or the sums of a batch norm must take them with 2 and with 4 rows
    /// (core/ops/norm.h). If a plan asks for 4 rows, the kernels of conv2d and of the gradients of convolution and
    /// pooling must compute them.
    virtual Kernel kernel(const OpRow* op) const = 0;
    /// Blocks until all work that was started is done. Throws Error if a kernel has failed.
    virtual void synchronize() = 0;

    /// Calls f, blocks until the work that f starts is done, and returns the seconds that the device needs for it. Work
    /// that was started before, and is not done yet, may count too.
    virtual double time_of(const std::function<void()>& f) {
        return wall_seconds([&] { f(), synchronize(); });
    }
    /// Measures the peak rates now. Returns 0 for a rate that is not known.
    virtual Rates rates() { return {}; }

    /// A recorded sequence of kernels that the device launches as one unit.
    class KernelGraph {
    public:
        virtual ~KernelGraph() = default;
        virtual void launch() = 0;
    };
    /// Calls f and records the work that f starts, without doing the work. Returns null if the device cannot make a
    /// graph of it; the caller then calls f itself each time. Call f directly at least once before, so that scratch
    /// memory is allocated. Throws Error if f throws, for example because f waits for the device; direct calls of f
    /// still work afterwards.
    virtual std::unique_ptr<KernelGraph> capture(const std::function<void()>&) { return nullptr; }
};

} // namespace rg
