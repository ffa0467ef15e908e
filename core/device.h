// A device that runs ops instead of this machine's processor: memory of its own, and a kernel for each op.
//
// Core knows no CUDA. Whoever has a device puts it into the Context; from then on tensors are made in its memory and
// ops run on it, one after the other, while the program goes on. Values that the program reads or writes itself are
// copied (Tensor::to_host(), Tensor::copy_from()), which waits for what came before.
#pragma once

#include "core/scope.h"

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace rg {

struct Call;
struct OpRow;
using Kernel = void (*)(const Call&);

/// Calls f and returns the seconds that it took.
template <class F>
double seconds_of(F&& f) {
    const auto start = std::chrono::steady_clock::now();
    f();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Peak rates of a device: operations per second, and bytes read or written per second. For a GPU, operations are
/// those of bf16 tensor cores, where a multiply-add counts as two; in f32 they take six times as long.
struct Rates {
    double flops = 0, bytes = 0;
};

/// Tensors keep a device that a shared_ptr has, so they may outlive whoever opened it.
class Device : public std::enable_shared_from_this<Device> {
public:
    virtual ~Device() = default;
    /// "NVIDIA H200 (sm_90, 139.8 GiB)"
    virtual std::string name() const = 0;

    /// Memory aligned to 256 bytes. Error when there is none left.
    virtual void* allocate(size_t bytes) = 0;
    virtual void release(void* memory) noexcept = 0;
    /// Ops that are started later find the values. `from` may be changed on return.
    virtual void upload(void* to, const void* from, size_t bytes) = 0;
    virtual void copy(void* to, const void* from, size_t bytes) = 0;
    /// The values, after the ops that were started before, are there on return; if more are to be downloaded, on that
    /// of the last.
    virtual void download(void* to, const void* from, size_t bytes, bool more = false) = 0;

    /// Pieces of the device's memory that come to this machine's, are changed there and go back, each while others are
    /// on their way, and while ops run:
    ///
    ///     start_ops(), trip->fetch(0), start_more(), trip->fetch(1);
    ///     for (size_t i = 0; i < 2; ++i) trip->wait(i), change(i), trip->put_back(i);
    ///
    /// A piece is what the ops that were started before its fetch() have made of it, and ops that are started after its
    /// put_back() find what it has put back; those in between may not use it. Here, it is the program's between wait()
    /// and put_back() alone.
    class RoundTrip {
    public:
        virtual ~RoundTrip() = default;
        virtual void fetch(size_t piece) = 0;
        virtual void wait(size_t piece) = 0;
        virtual void put_back(size_t piece) = 0;
    };
    /// Piece i ends at byte ends[i] of both memories, which outlive the result, and begins where the one before it
    /// ends. What the trips need is had once, here.
    virtual std::unique_ptr<RoundTrip> round_trip(void* here, void* there, std::vector<size_t> ends) = 0;

    /// Takes tensors in the device's memory, filters beside bf16 also in bf16 (fuse.cpp), and returns before the work
    /// is done.
    virtual Kernel kernel(const OpRow* op) const = 0;
    /// Waits for all work; errors of kernels come out here, at the latest.
    virtual void synchronize() = 0;

    /// How long the work that f starts takes, by itself.
    virtual double seconds(const std::function<void()>& f) {
        return seconds_of([&] { f(), synchronize(); });
    }
    /// What it does at most: measured now. 0: not known.
    virtual Rates rates() { return {}; }

    /// Work that is started as a whole.
    class Graph {
    public:
        virtual ~Graph() = default;
        virtual void launch() = 0;
    };
    /// What f would do, not done; null where the device has no such thing. f must have been run before. Error: f's own,
    /// or of what a graph cannot have in it; ops run as before then.
    virtual std::unique_ptr<Graph> capture(const std::function<void()>&) { return nullptr; }
};

} // namespace rg
