// NanGuard handles a loss or gradients that are not finite, as --on-nan asks.
//
//   stop  throws an Error that says where such a value was found
//   skip  leaves the step out: no update, and batch norm's running statistics are restored. The fourth such step in a
//         row is an Error.
//
// The optimizer's update changes nothing if a gradient or the loss is not finite. So the update can be part of the
// replayed step. Optimizer::update() calls first_non_finite() and passes its result to the update. Then the training
// calls handle_non_finite() with this result. All ranks decide alike without a message, since loss and gradients are
// sums over the ranks. The check reads the gradients once per step. Values that are not finite are never saved:
// Saver calls check_finite() before it writes a model or a checkpoint.
#pragma once

#include "models/run/optimizer.h"

#include <functional>

namespace rg {

enum class OnNan : uint8_t { stop, skip };

class NanGuard {
public:
    /// `parameters` must outlive this.
    NanGuard(OnNan policy, Parameters& parameters);

    /// Returns an empty text if the loss and the gradients of a step are finite. Otherwise skips the step, and returns
    /// a warning. `non_finite_at` is the result of first_non_finite() for the gradients and the loss over all ranks;
    /// unless it is -1, the update has changed nothing. Messages have the text that `cause` makes of the cause which
    /// this rank finds. Throws Error if the policy is `stop`, or if the previous three steps were skipped too.
    std::string handle_non_finite(int64_t step, double loss, const Tensor& non_finite_at,
                                  const std::function<std::string(const std::string&)>& cause = std::identity());

private:
    std::string describe_cause(double loss) const;

    const OnNan policy_;
    Parameters& parameters_;
    const Tensor statistics_; // for `skip`: the running statistics after the last applied step
    int64_t batches_tracked_;
    int skipped_ = 0; // number of skipped steps in a row
};

/// Throws Error if a parameter, a running statistic or a value of the optimizer is not finite.
void check_finite(const Parameters& parameters, const OptimizerState& optimizer);

} // namespace rg
