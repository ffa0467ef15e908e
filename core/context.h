// What the ops of one thread run on: backend, worker threads, ranks that share batch statistics, profile.
//
// A program makes one Context and keeps a ContextScope for as long as it runs; ranks that are threads of one process
// (tests) each have their own. Ops look it up instead of taking it, so that a model reads as mathematics.
#pragma once

#include "core/base.h"

#include <memory>
#include <span>
#include <utility>

namespace rg {

class Device;
class ThreadPool;
class Profile;

/// `reference`: plain loops in double, the definition of every op (f32 and f64). `cpu`: fast, f32.
enum class Backend : uint8_t { reference, cpu };

/// Sums over the ranks that train together. Core knows no MPI; whoever wants batch statistics over all ranks
/// (--sync-bn) installs one, with this rank's share of the samples of the current mini-batch.
class SyncGroup {
public:
    virtual ~SyncGroup() = default;
    virtual void sum(std::span<double> values) = 0;
    double share = 1;    // of this rank in the mini-batch
    int64_t samples = 0; // of all ranks in the mini-batch
};

struct Context {
    Backend backend = Backend::cpu;
    Device* device = nullptr;      // runs the ops and holds new tensors; null: the backend, in this machine's memory
    ThreadPool* threads = nullptr; // null: the calling thread alone
    SyncGroup* sync = nullptr;     // null: batch statistics of this rank's samples
    bool strict_fp32 = false;      // plain multiply-adds only, no algorithm that rounds differently (Winograd)
    Profile* profile = nullptr;    // null: ops are not timed
};

/// The context of this thread; a default one when no scope is open.
const Context& context();

/// Makes a context current on this thread until the end of the scope.
class ContextScope {
public:
    explicit ContextScope(const Context& context); // keeps a reference
    explicit ContextScope(Context&&) = delete;
    ~ContextScope();
    ContextScope(const ContextScope&) = delete;
    ContextScope& operator=(const ContextScope&) = delete;

private:
    const Context* before_;
};

/// Returns a function that runs f in the caller's context, for use on another thread. The context has to outlive it.
/// Tapes and dry runs stay on their thread.
template <class F>
auto in_this_context(F f) {
    return [f = std::move(f), &here = context()] {
        const ContextScope scope(here);
        return f();
    };
}

} // namespace rg
