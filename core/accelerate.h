// accelerate: a user's function of tensors, traced once per signature and then replayed from a cache of plans.
//
//     Accelerated step([&](std::span<const Tensor> in, bool training) -> std::vector<Tensor> { ... return {loss}; });
//     const Tensor loss = step({x, labels}, true)[0];
//
// The signature of a call is the shapes and types of its inputs, the training flag, and what of the Context changes
// the computation (backend, device, strict arithmetic, ranks that share statistics). Inputs may lie in this machine's
// memory even if the context has a device; results are in the device's. The function must be a function: it may
// read and write tensors through ops only, and what it does on the host while it is traced happens once.
#pragma once

#include "core/context.h"
#include "core/plan.h"

#include <functional>
#include <list>

namespace rg {

class Accelerated {
public:
    using Function = std::function<std::vector<Tensor>(std::span<const Tensor> in, bool training)>;
    explicit Accelerated(Function function) : function_(std::move(function)) {}

    /// The function's results. They are overwritten by the next call with the same signature: copy what is to stay.
    /// While a Tape records, the plain function runs, so that its ops are recorded.
    std::span<const Tensor> operator()(std::initializer_list<Tensor> in, bool training = false);

    /// The plan that a call with such inputs replays, made if need be; counts as neither hit nor miss.
    const Plan& plan(std::initializer_list<Tensor> in, bool training = false);

    /// Off: every call runs the plain function.
    bool enabled = true;
    /// Plans that are kept; beyond, the one that was not used for longest goes.
    size_t cache_size = 50;
    /// Also runs the plain function, and throws when a result, or a tensor that is written on the way, differs by
    /// more than `check_tolerance` times the largest magnitude of that tensor.
    bool check = false;
    double check_tolerance = 1e-4;

    /// Called after steps of a replay (Plan::replay()): what is started now may use what they have written, beside
    /// those that follow.
    Plan::AfterStep after_step;

    /// Memory of all kept plans.
    int64_t planned_bytes() const;

    /// Kept plans as a part of cache_size; calls that found their plan as a part of all (0 before the first).
    double occupancy() const { return double(cache_.size()) / double(cache_size); }
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
    Plan& find_or_trace(std::span<const Tensor> in, bool training, bool& found);
    std::span<const Tensor> replay_and_check(Plan& plan, std::span<const Tensor> in, bool training);

    Function function_;
    std::list<Entry> cache_; // the last used first
    std::vector<Tensor> plain_results_;
    uint64_t calls_ = 0, hits_ = 0;
};

} // namespace rg
