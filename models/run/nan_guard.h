// What a training does about a loss or gradients that are not finite, as --on-nan says.
//
//   stop      an Error that names what went bad first
//   skip      the step is left out: no update, and batch norm's running statistics as they were before it
//   rollback  everything as at the last checkpoint, of which a copy is kept in memory
//
// A training is a function of its seed: after a rollback, what was a fault of the machine does not come again, and what
// was not, does. So after three bad steps in a row the next is an Error, unless the furthest of them has come out
// well since.
//
// The update itself leaves everything as it is where gradients or loss are not finite, so that it can be a part of what
// is replayed: a program calls first_non_finite() and the update with its result, then judge(), which says what
// follows. All ranks decide alike without asking each other, for they have summed loss and gradients before. It costs a
// pass over the gradients per step. Values that are not finite are never kept, and check_values() comes before any
// file.
#pragma once

#include "models/run/training_state.h"

namespace rg {

enum class OnNan : uint8_t { stop, skip, rollback };

/// What has become of a step.
enum class Verdict : uint8_t { good, skip, rolled_back };

class NanGuard {
public:
    /// Keeps a copy of what the policy needs: the state now, where `at` stands. `parameters` outlives this.
    NanGuard(OnNan policy, Parameters& parameters, const OptimizerState& optimizer, const Position& at);

    /// The step after `at`, by what first_non_finite() has found in the gradients and the loss over all ranks; if that
    /// is something, its update has changed nothing. Other than `good`: `warning` says why; rolled_back has moved `at`.
    /// Error: stop, or nothing helps.
    Verdict judge(Position& at, double loss, const Tensor& found, std::string& warning);

    /// `at` is where a rollback goes from here on.
    void checkpoint(const Position& at);

    /// Error if a parameter, a running statistic or a value of the optimizer is not finite.
    void check_values() const;

private:
    void keep(const Position& at);
    void restore() const;
    std::string first_bad(double loss) const;
    std::string bad_values() const;
    std::string bad_statistic() const;
    std::string bad_in(const Tensor& flat, const std::string& of) const;

    const OnNan policy_;
    Parameters& parameters_;
    const OptimizerState optimizer_;
    const Tensor found_;              // where bad_in() looks, so that nothing is allocated
    std::vector<Tensor> live_, kept_; // the buffers that the policy brings back, and their copies
    Position kept_at_;
    int64_t kept_tracked_ = 0;
    int attempts_ = 0;  // bad steps in a row
    int64_t worst_ = 0; // the furthest of them
};

} // namespace rg
