// NanGuard handles a loss or gradients that are not finite, as --on-nan asks.
//
//   stop      an Error that names what went bad first
//   skip      the step is left out: no update, and batch norm's running statistics as they were before it
//   rollback  everything as at the last checkpoint, of which a copy is kept in memory
//
// A training is a function of its seed: after a rollback, what was a fault of the machine does not come again, and what
// was not, does. So after three bad steps in a row the next is an Error, unless the furthest of them has come out
// well since.
//
// The update itself changes nothing if a gradient or the loss is not finite, so it can be part of the replayed step.
// Trainer calls first_non_finite(), then the update with its result, then handle_non_finite(), which decides what to
// do. All ranks decide alike without a message, since loss and gradients are sums over the ranks. This costs one pass
// over the gradients per step. Values that are not finite are never kept: check_values() runs before any file is
// written.
#pragma once

#include "models/run/training_state.h"

namespace rg {

enum class OnNan : uint8_t { stop, skip, rollback };

/// The fate of a step.
enum class Verdict : uint8_t { good, skip, rolled_back };

class NanGuard {
public:
    /// Keeps copies of the state that the policy needs, as it is at `position`. `parameters` outlives this.
    NanGuard(OnNan policy, Parameters& parameters, const OptimizerState& optimizer, const Position& position);

    /// Decides about the step after `position`. `non_finite_at` is the result of first_non_finite() for the gradients
    /// and the loss over all ranks; unless it is -1, the update has changed nothing. If the result is not `good`,
    /// `warning` says why; rolled_back has moved `position`. Throws Error if the policy is stop, or if nothing helps.
    Verdict handle_non_finite(Position& position, double loss, const Tensor& non_finite_at, std::string& warning);

    /// Makes `position` the place that a rollback goes back to.
    void checkpoint(const Position& position);

    /// Throws Error if a parameter, a running statistic or a value of the optimizer is not finite.
    void check_values() const;

private:
    void keep(const Position& position);
    void restore_kept() const;
    std::string first_bad(double loss) const;
    std::string bad_values() const;
    std::string bad_statistic() const;
    std::string bad_in(const Tensor& flat, const std::string& of) const;

    const OnNan policy_;
    Parameters& parameters_;
    const OptimizerState optimizer_;
    const Tensor non_finite_at_ = Tensor::empty({}, DType::i32); // the result of bad_in(), allocated once
    std::vector<Tensor> live_, kept_; // the buffers that the policy restores, and their copies
    Position kept_position_;
    int64_t kept_tracked_ = 0;
    int attempts_ = 0;  // bad steps in a row
    int64_t worst_ = 0; // the furthest of them
};

} // namespace rg
