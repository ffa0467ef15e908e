// Defines Context: the backend, the device, the worker threads, the sums over ranks (--sync-bn) and the profile that
// ops use.
//
// A program usually makes one Context and one ContextScope for its whole run. Some tests run ranks as threads of one
// process; then each thread has its own Context.
#pragma once

#include "core/base.h"

#include <memory>
#include <span>
#include <utility>

namespace rg {

class Device;
class ThreadPool;
class Profile;

/// `reference` defines every op by plain loops in double, for f32, bf16 and f64. `cpu` has fast kernels, for f32 and
/// bf16.
enum class Backend : uint8_t { reference, cpu };

/// Sums values over the ranks that train together. Core does not know MPI: a program that wants batch statistics over
/// all ranks (--sync-bn) implements a SyncGroup, and sets `fraction` and `samples` for each mini-batch.
class SyncGroup {
public:
    virtual ~SyncGroup() = default;
    /// Replaces each value by its sum over all ranks. Collective.
    virtual void sum(std::span<double> values) = 0;
    double fraction = 1; // samples of this rank / samples of all ranks in the mini-batch
    int64_t samples = 0; // number of samples of all ranks in the mini-batch
};

struct Context {
    Backend backend = Backend::cpu;
    // Runs the ops and holds new tensors; null: `backend` runs the ops in host memory. See gpu/device.h.
    Device* device = nullptr;
    ThreadPool* threads = nullptr; // null: the calling thread runs all tasks
    SyncGroup* sync = nullptr;     // null: batch statistics are over the samples of the op's input alone
    bool strict_fp32 = false;      // true: CPU convolutions use no Winograd, and those in f32 no bf16 products
    Profile* profile = nullptr;    // null: ops are not timed
};

/// Returns the context of this thread, or a default context outside of every ContextScope.
inline const Context& context() {
    static const Context kDefault;
    const Context* const current = Scope::current().context;
    return current ? *current : kDefault;
}

/// Sets the context of this thread until the ContextScope is destroyed.
class ContextScope {
public:
    /// Keeps only a reference to the context, which must outlive the ContextScope.
    explicit ContextScope(const Context& context) : context_(Scope::current().context, &context) {}
    explicit ContextScope(Context&&) = delete;

private:
    Setting<const Context*> context_;
};

/// Returns a function that another thread can call. It runs f in the context of the thread that calls
/// in_this_context(). That context must outlive the function. The caller's tapes, traces and dry runs do not apply on
/// the other thread.
template <class F>
auto in_this_context(F f) {
    return [f = std::move(f), &callers_context = context()] {
        const ContextScope scope(callers_context);
        return f();
    };
}

} // namespace rg
