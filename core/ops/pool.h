// The ops of max and average pooling.
#pragma once

#include "ringgrad/core/ops/norm.h"

namespace rg {

/// Says how pooling treats rows and columns at the end of an image that no window covers (1 of 7 by windows of 2).
enum class Uncovered : uint8_t { error, drop };

/// Pool windows of x [n h w c] without padding. Return [n h' w' c]. Of equal maxima, the first gets the gradient. NaN
/// is the largest value. If the stride exceeds the window, the gaps between windows are no error.
Tensor max_pool2d(const Tensor& x, int64_t window, int64_t stride, Uncovered rest = Uncovered::error);
Tensor avg_pool2d(const Tensor& x, int64_t window, int64_t stride, Uncovered rest = Uncovered::error);

// ---- rows of the op table ----

#define RG_POOL_OPS(X) X(max_pool2d) X(max_pool2d_grad) X(avg_pool2d) X(avg_pool2d_grad)
RG_POOL_OPS(RG_DECLARE_OP)

struct Pool {
    int64_t window = 0, stride = 1;
};

struct Pool2dOp {
    enum In { x, x_stats, x_gamma, x_beta };
    enum Out { y, positions }; // positions: only of max pooling; u8, row * window + column of the maximum in its window
    Pool pool;
    BatchNorm x_norm = {}; // used if x_stats, x_gamma and x_beta are defined: normalises x on load
};
/// Computes dx. If x, the input of the pooling, and its statistics are defined, also computes x_dgamma and x_dbeta: the
/// sums of dx that BatchNormSumsOp defines.
struct Pool2dGradOp {
    enum In { dy, x, x_stats, x_gamma, x_beta, positions }; // positions: only for max pooling
    enum Out { dx, x_dgamma, x_dbeta };
    Pool pool;
    int64_t height = 0, width = 0; // extents of dx
    BatchNorm x_norm = {};
};

} // namespace rg
