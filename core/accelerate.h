// accelerate: traces a user's function of tensors once per signature, and then replays it from a cache of plans.
//
//     Accelerated step([&](std::span<const Tensor> in, bool training) -> std::vector<Tensor> { ... return {loss}; });
//     const Tensor loss = step({x, labels}, true)[0];
//
// The signature of a call consists of the shapes and types of its inputs, the training flag, and the parts of the
// Context that change the computation: backend, device, strict arithmetic, ranks that share statistics. If the context
// has a device, inputs may be in host memory; results are in device memory. The function must read and write tensors
// through ops only. Anything else that it does happens once, during the trace, and not in replays.
#pragma once

#include "core/context.h"
#include "core/plan.h"

#include <functional>
#include <list>

namespace rg {

class Accelerated {
public:
    using Function = std::function<std::vector<Tensor>(std::span<const Tensor> in, bool training)>;
    explicit Accelerated(Function function, bool enabled = true) : enabled(enabled), function_(std::move(function)) {}

    /// Returns the results of the function. The next call with the same signature overwrites them; copy them to keep
    /// them. While a Tape records, the plain function runs, so that the tape records its ops.
    std::span<const Tensor> operator()(std::span<const Tensor> in, bool training = false);
    std::span<const Tensor> operator()(std::initializer_list<Tensor> in, bool training = false) {
        return (*this)(std::span(in.begin(), in.size()), training);
    }

    /// Returns the plan that a call with such inputs replays, and makes it if necessary. Counts as no hit and no miss.
    const Plan& plan(std::span<const Tensor> in, bool training = false);
    const Plan& plan(std::initializer_list<Tensor> in, bool training = false) {
        return plan(std::span(in.begin(), in.size()), training);
    }

    /// If false, every call runs the plain function.
    bool enabled;
    /// Largest number of plans in the cache. A new plan replaces the least recently used one.
    size_t cache_size = 50;
    /// If true, each call also runs the plain function. It throws Error if a result, or a tensor that the steps write,
    /// differs by more than `check_tolerance` times the largest magnitude of that tensor.
    bool check = false;
    double check_tolerance = 1e-4;

    /// Called after the steps of a replay (see Plan::replay()). It may start work on the values that these steps have
    /// written; this work then overlaps with the steps that follow.
    Plan::AfterStep after_step;

    /// Bytes of memory that all plans in the cache hold.
    int64_t planned_bytes() const;

    /// Plans in the cache as a fraction of cache_size.
    double occupancy() const { return double(cache_.size()) / double(cache_size); }
    /// Fraction of the calls that found their plan in the cache; 0 before the first call.
    double hit_rate() const { return calls_ ? double(hits_) / double(calls_) : 0; }
    void clear_cache();

private:
    struct Signature {
        std::vector<std::pair<Shape, DType>> inputs;
        bool training, strict, sync;
        Backend backend;
        Device* device;
    };
    struct Entry {
        Signature signature;
        Plan plan;
    };
    bool matches(const Signature& signature, std::span<const Tensor> in, bool training) const;
    Plan& find_or_trace(std::span<const Tensor> in, bool training, bool& hit);
    std::span<const Tensor> replay_and_check(Plan& plan, std::span<const Tensor> in, bool training);

    Function function_;
    std::list<Entry> cache_; // the most recently used first
    std::vector<Tensor> plain_results_;
    uint64_t calls_ = 0, hits_ = 0;
};

} // namespace rg
