// Convolution and fully connected layers.
#pragma once

#include "core/ops/norm.h"

namespace rg {

struct Conv {
    int64_t stride = 1;
    int64_t pad = 0;
};

/// Returns the zero padding that keeps the extent at stride 1, for an odd kernel.
constexpr int64_t same(int64_t kernel) { return (kernel - 1) / 2; }

/// Cross-correlation: x [n h w c], w [k r s c], b [k] or undefined -> [n h' w' k].
Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& b = {}, Conv conv = {});

/// conv2d, and the batch statistics of its result (see channel_stats), which it computes while the result is in cache.
struct WithStats {
    Tensor y, stats;
};
WithStats conv2d_stats(const Tensor& x, const Tensor& w, const Tensor& b = {}, Conv conv = {});

/// x [n c], w [k c], b [k] or undefined -> [n k].
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b = {});

// ---- rows of the op table ----

#define RG_CONV_OPS(X) X(conv2d) X(conv2d_grad)
RG_CONV_OPS(RG_DECLARE_OP)

/// A convolution with optional steps before and after it, which core/fuse.cpp moves into it.
struct Conv2dOp {
    enum In { x, w, bias, x_stats, x_gamma, x_beta, y_stats, y_gamma, y_beta };
    enum Out { y, stats };
    Conv conv;
    bool with_stats = false; // the op also writes the batch statistics of its result
    BatchNorm x_norm = {};   // with x_stats, x_gamma, x_beta: normalises x on load
    BatchNorm y_norm = {};   // with y_stats, y_gamma, y_beta: normalises the result, with constant statistics
    int64_t pool = 1;        // max pooling of the normalised result: window and stride
};

/// Both gradients of a convolution, with optional steps before and after them.
struct Conv2dGradOp {
    enum In { dy, x, w, addend, y, y_stats, y_gamma, y_beta, y_sums, x_stats, x_gamma, x_beta };
    enum Out { dw, dbias, dx, x_dgamma, x_dbeta };
    Conv conv;
    bool filters = true;     // compute dw and dbias
    bool data = true;        // compute dx, plus `addend` if that is defined
    bool with_sums = false;  // compute x_dgamma and x_dbeta: the sums of dx that BatchNormSumsOp defines
    BatchNorm y_norm = {};   // with y and its statistics: dy is the gradient after a batch norm of y (BatchNormGradOp)
    BatchNorm x_norm = {};   // with x_stats, x_gamma, x_beta: normalises x on load
};

} // namespace rg
