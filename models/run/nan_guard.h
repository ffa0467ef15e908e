// NanGuard handles a loss or gradients that are not finite, as --on-nan asks.
//
//   stop      throws an Error that says where such a value was found
//   skip      leaves the step out: no update, and batch norm's running statistics are restored
//   rollback  restores the state of the last checkpoint, or of the start, from a copy in memory
//
// A bad step has a loss or a gradient that is not finite. After a rollback, the same steps are computed again. So a
// transient hardware error does not recur, but most other causes do. Therefore the fourth bad step in a row is an
// Error. The count restarts after a good step whose number is at least that of every bad step.
//
// The optimizer's update changes nothing if a gradient or the loss is not finite. So the update can be part of the
// replayed step. Optimizer::update() calls first_non_finite() and passes its result to the update. Then the training
// calls handle_non_finite() with this result. All ranks decide alike without a message, since loss and gradients are
// sums over the ranks. The check reads the gradients once per step. Values that are not finite are never saved:
// check_values() runs before a model or a checkpoint is written.
#pragma once

#include "ringgrad/models/run/training_state.h"

namespace rg {

enum class OnNan : uint8_t { stop, skip, rollback };

/// The outcome of a step: its update was applied, the step was skipped, or the run was rolled back.
enum class Verdict : uint8_t { applied, skipped, rolled_back };

class NanGuard {
public:
    /// Copies the buffers that the policy may restore (for `stop` none), and `position`. `parameters` must outlive
    /// this.
    NanGuard(OnNan policy, Parameters& parameters, const OptimizerState& optimizer, const Position& position);

    /// Decides about the step after `position`. `non_finite_at` is the result of first_non_finite() for the gradients
    /// and the loss over all ranks; unless it is -1, the update has changed nothing. If the step was not applied,
    /// `warning` says why. A rollback moves `position` back. Throws Error at a bad step if the policy is `stop`, or if
    /// the step is the fourth bad one in a row.
    Verdict handle_non_finite(Position& position, double loss, const Tensor& non_finite_at, std::string& warning);

    /// Call this when a checkpoint is saved: a later rollback returns to the current state, at `position`.
    void checkpoint(const Position& position);

    /// Throws Error if a parameter, a running statistic or a value of the optimizer is not finite.
    void check_values() const;

private:
    void back_up(const Position& position);
    void restore_backup() const;
    std::string describe_cause(double loss) const;
    std::string describe_saved_values() const;
    std::string describe_buffer(const Tensor& flat, const std::string& kind, int64_t begin = 0) const;

    const OnNan policy_;
    Parameters& parameters_;
    const OptimizerState optimizer_;
    const Tensor non_finite_at_ = Tensor::empty({}, DType::i32); // scratch of describe_buffer(), allocated once
    std::vector<Tensor> buffers_, backups_;                      // the buffers that the policy restores; their copies
    Position backup_position_;
    int64_t backup_batches_tracked_ = 0;
    int bad_steps_ = 0;             // number of bad steps in a row
    int64_t furthest_bad_step_ = 0; // largest number of a bad step
};

} // namespace rg
