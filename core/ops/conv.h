// The ops of convolution and of fully connected layers. In shapes, n is the number of images or samples, h and w are
// pixels, c and k are the channels of the input and of the result, and r and s are the height and width of a filter.
#pragma once

#include "core/ops/norm.h"
#include "core/ops/per_axis.h"

namespace rg {

struct Conv {
    PerAxis stride = 1, pad = 0;
    PerAxis dilation = 1; // distance between the pixels of x that neighbouring weights of a filter multiply
    int64_t groups = 1;   // number of equal parts of the channels of x and y; part i of y depends only on part i of x
};

/// Returns the zero padding with which an odd kernel keeps the extent of an image, at stride 1 and dilation 1.
constexpr int64_t same(int64_t kernel) { return (kernel - 1) / 2; }

/// Returns the cross-correlation [n h' w' k] of x [n h w c] with the filters w [k r s c/groups], plus the bias b [k] if
/// that is defined. h' x w' is the number of positions of a filter. With groups == c, the convolution is depthwise.
Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& b = {}, Conv conv = {});

/// The results of conv2d_stats(): y is that of conv2d(), and stats is channel_stats(y), except that most kernels
/// compute it before they round y to bf16. The op computes the statistics while y is in cache.
struct WithStats {
    Tensor y, stats;
};
WithStats conv2d_stats(const Tensor& x, const Tensor& w, const Tensor& b = {}, Conv conv = {});

/// Returns x w^T + b, with the shape [n k], for x [n c], w [k c], and b [k] or undefined.
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b = {});

// ---- ops: their inputs, results and attributes ----

#define RG_CONV_OPS(X) X(conv2d) X(conv2d_grad)
RG_CONV_OPS(RG_DECLARE_OP)

/// Returns true if a convolution with filters w [k r s c/groups] can do the work of other steps in a plan, such as a
/// batch norm. It can with one group, and on CPUs if it is depthwise. Kernels that convolve group by group see only
/// some of the channels, and those of GPUs for groups are simple loops.
bool takes_fused_steps(const Conv& conv, const Tensor& w);

/// A convolution. In a plan, core/fuse.cpp may make steps before and after it part of this op, if takes_fused_steps().
/// y_stats is an input, such as running statistics in an evaluation: the op does not compute y_stats from its own
/// result.
///
/// In a plan for a device, the op may do more with the statistics that it computes. If gamma and beta of y_norm are
/// defined and y_stats is not, `stats` has 4 rows (norm.h), with the coefficients of batch_norm(y). If `running` is
/// defined, the op updates it in place as update_running() does, with `momentum`.
struct Conv2dOp {
    enum In { x, w, bias, x_stats, y_stats = NormAt<x_stats>::kEnd, running = NormAt<y_stats>::kEnd };
    enum Out { y, stats, new_running };
    Conv conv;
    bool with_stats = false;        // true: also writes the statistics of the result; see WithStats
    NormAt<x_stats, x> x_norm = {}; // applied to x as it is read
    NormAt<y_stats> y_norm = {};    // applied to the result; without y_stats, see above
    float momentum = 0;             // used if `running` is defined
};

/// Computes the gradients of a convolution. In a plan, core/fuse.cpp may make steps before and after it part of this
/// op, if takes_fused_steps(). A step of a plan that computes only dx may leave x undefined; kernels then take the
/// shape of x from dx. In a plan for a device, x_sums may have 4 rows: it gets the rows of CombineSumsOp for x_dgamma
/// and x_dbeta, and two more (norm.h).
struct Conv2dGradOp {
    enum In { dy, x, w, addend, y, y_stats, y_sums = NormAt<y_stats>::kEnd, x_stats };
    enum Out { dw, dbias, dx, x_dgamma, x_dbeta, x_sums };
    Conv conv;
    bool filters = true;    // true: computes dw and dbias
    bool data = true;       // true: computes dx, and adds `addend` to it if that is defined
    bool with_sums = false; // true: computes x_dgamma and x_dbeta, the sums of dx that BatchNormGradSumsOp defines
    NormAt<y_stats, y> y_norm = {}; // used if y is defined: dy is the gradient of batch_norm(y), not of y
    NormAt<x_stats, x> x_norm = {}; // applied to x as it is read
};

} // namespace rg
