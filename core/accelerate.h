// Defines Accelerated, which runs a user's function of tensors faster. The first call with a signature traces the
// function: it records the function's ops as a plan (plan.h). This call and later ones replay the plan. A cache keeps
// the plans.
//
//     Accelerated step([&](std::span<const Tensor> in, bool training) -> std::vector<Tensor> { ... return {loss}; });
//     const Tensor loss = step({x, labels}, true)[0];
//
// The signature of a call consists of the shapes and types of its inputs, the training flag, and the parts of the
// Context that change the computation: the backend, the device, strict_fp32, and whether `sync` is set. If the context
// has a device, inputs may be in host or device memory, and results are in device memory. The function must read and
// write tensors through ops only. Anything else that it does happens during the trace, and not in replays. So pass
// every value that changes between calls in `in`: a number or tensor that the function captures stays that of the
// trace. Only new values in a captured tensor's memory, such as updated parameters, count in replays. The exception is
// Context::sync: ops read its `samples` and `fraction` in each replay. For gradients of a captured tensor, inputs are
// constants, even if one of them is that tensor.
//
// The plans of an Accelerated for one device share the memory of their intermediates, which is as large as the largest
// plan needs. Several objects may share it, too (share_memory()). So an Accelerated serves one thread at a time: a call
// during another throws Error. Each call replaces the results of the last one, so threads that share an Accelerated
// must lock a mutex until they have read the results.
#pragma once

#include "core/context.h"
#include "core/one_caller.h"
#include "core/plan.h"

#include <array>
#include <functional>
#include <list>
#include <memory>

namespace rg {

class Accelerated {
public:
    using Function = std::function<std::vector<Tensor>(std::span<const Tensor> in, bool training)>;
    explicit Accelerated(Function function, bool enabled = true) : enabled(enabled), function_(std::move(function)) {}

    /// Returns the results of the function. Any later call, plan() or clear_cache() may overwrite or free them; clone()
    /// them to keep their values. They may be inputs of the next call. Throws Error if the function writes to an input.
    /// While a Tape records, runs the plain function, without a plan, so that the tape records its ops. Does the same
    /// in a dry run, and while another function is traced, whose plan then includes the ops.
    std::span<const Tensor> operator()(std::span<const Tensor> in, bool training = false);
    std::span<const Tensor> operator()(std::initializer_list<Tensor> in, bool training = false) {
        return (*this)(std::span(in.begin(), in.size()), training);
    }

    /// Returns the plan that a call with these arguments replays. Traces the function if the cache has no such plan.
    /// The plan is valid as long as the cache keeps it. Does not count as a call in hit_rate(), but the first call that
    /// replays the plan counts as if it had traced.
    const Plan& plan(std::span<const Tensor> in, bool training = false);
    const Plan& plan(std::initializer_list<Tensor> in, bool training = false) {
        return plan(std::span(in.begin(), in.size()), training);
    }

    /// Makes the plans of this object, which has none yet, share the memory of their intermediates with those of
    /// `other`, and with all that share it with `other`. Then these objects together serve one thread at a time, and
    /// none may call another.
    void share_memory(const Accelerated& other);

    /// If false, every call runs the plain function, without a plan.
    bool enabled;
    /// Largest number of plans in the cache, at least 1. When the cache is full, a new plan replaces the least recently
    /// used one.
    size_t cache_size = 50;
    /// If true, each call runs the plain function before the replay and compares them; it does not call after_step. It
    /// compares the results, and the blocks of memory in Plan::written(). Throws Error if one of these differs by more
    /// than `check_tolerance` times the largest finite magnitude that the plain function gives for it.
    bool check = false;
    double check_tolerance = 1e-4;

    /// If true, replays keep the values that CPU kernels prepare from parameters, such as packed filters. This makes
    /// predictions of a few images faster. See Plan::keep_prepared(). The kernels prepare them again when
    /// Tensor::version() of a parameter has grown. After you have changed parameters through a pointer, call their
    /// note_write(), or clear_cache(). Applies only to plans that are traced after the flag is set. Each of these plans
    /// keeps values of its own, often several times as many bytes as the parameters have.
    bool keep_prepared = false;

    /// If set, each replay calls this function after each step or, with graphs, after each graph; see Plan::replay().
    /// The function may start work on the values that the steps so far have written. Such work can overlap with the
    /// steps that follow.
    Plan::AfterStep after_step;

    /// Returns the number of bytes in the results of all plans in the cache, and in their arenas: the memory of
    /// intermediates, which the plans for one device share. Does not count what `keep_prepared` keeps. For several
    /// objects, counts memory that they share once.
    int64_t planned_bytes() const { return planned_bytes(std::array{this}); }
    static int64_t planned_bytes(std::span<const Accelerated* const> several);
    /// Returns the number of plans in the cache.
    size_t plans() const { return cache_->size(); }

    /// Returns the number of plans in the cache as a fraction of cache_size.
    double occupancy() const { return double(plans()) / double(cache_size); }
    /// Returns the fraction of the calls that did not need a trace of their own, or 0 if there were no calls. The first
    /// call of each plan needs one, also if plan() has made it ahead. So N calls with one signature give 1 - 1 / N.
    /// Calls that run only the plain function do not count.
    double hit_rate() const { return calls_ ? double(hits_) / double(calls_) : 0; }
    /// Removes all plans from the cache, and forgets the calls that hit_rate() counts.
    void clear_cache();

private:
    struct Signature {
        std::vector<std::pair<Shape, DType>> inputs;
        bool training, strict, sync;
        Backend backend;
        Device* device;
    };
    struct CachedPlan {
        Signature signature;
        Plan plan;
        bool used = false; // true after the first call that replays the plan
    };
    bool matches(const Signature& signature, std::span<const Tensor> in, bool training) const;
    CachedPlan& find_or_trace(std::span<const Tensor> in, bool training);
    void evict(); // removes the least recently used plans beyond cache_size
    std::span<const Tensor> replay_and_check(Plan& plan, std::span<const Tensor> in, bool training);

    using Cache = std::list<CachedPlan>; // sorted by last use, the latest first
    struct Sharers {                     // the objects that share memory
        OneCaller caller;
        std::vector<std::weak_ptr<Cache>> caches;
    };
    template <class F>
    void each_sharing(const Device* device, F f) const;

    Function function_;
    std::shared_ptr<Cache> cache_ = std::make_shared<Cache>();
    std::shared_ptr<Sharers> sharers_ = std::make_shared<Sharers>(Sharers{{}, {cache_}});
    std::vector<Tensor> plain_results_;
    uint64_t calls_ = 0, hits_ = 0;
};

} // namespace rg
