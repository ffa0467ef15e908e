// Max and average pooling.
#pragma once

#include "core/ops/norm.h"

namespace rg {

/// Says how pooling treats rows and columns at the end of an image that no window covers (1 of 7 by windows of 2).
enum class Uncovered : uint8_t { error, drop };

/// Windows without padding: [n h w c] -> [n h' w' c]. Max takes the first of equal values. If the stride exceeds the
/// window, the gaps between windows are no error.
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
    enum Out { y, positions }; // positions: only of max pooling; u8, the index of the maximum in its window
    Pool pool;
    BatchNorm x_norm = {}; // with x_stats, x_gamma, x_beta: normalises x on load
};
/// Given x and its statistics, also computes x_dgamma and x_dbeta: the sums of dx that BatchNormSumsOp defines.
struct Pool2dGradOp {
    enum In { dy, x, x_stats, x_gamma, x_beta, positions }; // positions: only for max pooling
    enum Out { dx, x_dgamma, x_dbeta };
    Pool pool;
    int64_t height = 0, width = 0; // of dx
    BatchNorm x_norm = {};
};

} // namespace rg
