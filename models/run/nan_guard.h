// NanGuard handles a loss or gradients that are not finite, as --on-nan asks.
//
//   stop      throws an Error that names the first tensor with such a value
//   skip      leaves the step out: no update, and batch norm's running statistics are restored
//   rollback  restores the state of the last checkpoint, from a copy in memory
//
// After a rollback, the same steps are computed again with the same bits. So an error of the hardware does not return,
// but any other cause does. Therefore the fourth bad step in a row is an Error. The count restarts once the furthest of
// the bad steps succeeds.
//
// The optimizer's update changes nothing if a gradient or the loss is not finite. So the update can be part of the
// replayed step. Trainer calls first_non_finite(), then the update with its result, then handle_non_finite(). All ranks
// decide alike without a message, since loss and gradients are sums over the ranks. The cost is one pass over the
// gradients per step. Values that are not finite are never saved: check_values() runs before any file is written.
#pragma once

#include "ringgrad/core/parameters.h"
#include "ringgrad/core/safetensors.h"

namespace rg {

/// The position of a training. There is no random state, since all random numbers are functions of the seed and of
/// these counters.
struct Position {
    int64_t epoch = 1, batch = 0;                 // of the next step; epochs count from 1, batches from 0
    int64_t step = 0;                             // number of finished steps since the start
    double loss_sum = 0, correct = 0, images = 0; // sums over the finished steps of this epoch and all ranks
    double best_accuracy = -1;                    // highest accuracy in a test; -1 before the first
    int64_t best_epoch = 0;
};

/// The optimizer's flat buffers by name; the names begin with "optimizer.".
using OptimizerState = std::vector<NamedTensor>;

enum class OnNan : uint8_t { stop, skip, rollback };

/// The outcome of a step: its update was applied or skipped, or the run went back to its last checkpoint.
enum class Verdict : uint8_t { applied, skipped, rolled_back };

class NanGuard {
public:
    /// Copies the state that the policy may restore, and `position`. `parameters` must outlive this.
    NanGuard(OnNan policy, Parameters& parameters, const OptimizerState& optimizer, const Position& position);

    /// Decides about the step after `position`. `non_finite_at` is the result of first_non_finite() for the gradients
    /// and the loss over all ranks; unless it is -1, the update has changed nothing. If the step was not applied,
    /// `warning` says why. A rollback moves `position` back. Throws Error if the policy is stop, or at the fourth bad
    /// step in a row.
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
    std::string describe_running_statistics() const;
    std::string describe_buffer(const Tensor& flat, const std::string& kind) const;

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
