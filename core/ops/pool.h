// The ops of max and average pooling. In shapes, n is the number of images, h and w are pixels, and c channels.
#pragma once

#include "core/ops/norm.h"
#include "core/ops/per_axis.h"

namespace rg {

/// The windows of pooling, in pixels. They may overlap. If the stride exceeds the window, pixels between windows are
/// left out.
struct Pool {
    PerAxis window = 1, stride = 1;
    PerAxis pad = 0;        // padding on each side of an axis; less than the window
    bool count_pad = true;  // true: averages divide by the window's area; false: by the part of it inside the image
    bool drop_rest = false; // true: windows may leave out any rows and columns at the end of an image; false: Error if
                            // they leave out more there than between two windows
};

/// Pool windows of x [n h w c]. Return [n h' w' c], where h' x w' is the number of windows in an image. Maxima ignore
/// the padding; averages count it as zeros, or ignore it if Pool::count_pad is false. Of equal maxima, the first gets
/// the gradient. Max pooling takes NaN as the largest value. Its windows have at most 256 pixels.
Tensor max_pool2d(const Tensor& x, const Pool& pool);
Tensor avg_pool2d(const Tensor& x, const Pool& pool);

/// Returns the mean [n c] of each channel of each image of x [n h w c].
Tensor global_avg_pool(const Tensor& x);

// ---- ops: their inputs, results and attributes ----

#define RG_POOL_OPS(X) X(max_pool2d) X(max_pool2d_grad) X(avg_pool2d) X(avg_pool2d_grad)
RG_POOL_OPS(RG_DECLARE_OP)

/// Pools. Max pooling also writes `positions`, in u8: row * window.w + column of each maximum within its window.
struct Pool2dOp {
    enum In { x, x_stats };
    enum Out { y, positions };
    Pool pool;
    NormAt<x_stats, x> x_norm = {}; // applied to x as it is read
};
/// Computes dx. If x, the input of the pooling, is defined, also computes x_dgamma and x_dbeta: the sums of dx that
/// BatchNormGradSumsOp defines. For x_sums, see Conv2dGradOp.
struct Pool2dGradOp {
    enum In { dy, x, x_stats, positions = NormAt<x_stats>::kEnd }; // positions: only for max pooling
    enum Out { dx, x_dgamma, x_dbeta, x_sums };
    Pool pool;
    int64_t height = 0, width = 0; // extents of dx
    NormAt<x_stats, x> x_norm = {};
};

} // namespace rg
