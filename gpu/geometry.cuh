// The extents of a convolution, as its kernels (conv*.cu) use them.
//
// In shapes such as [n h w c], n is the number of images, and h, w and c are their rows, columns and channels. k is the
// number of filters, and r and s are the rows and columns of a filter.
#pragma once

#include "ringgrad/core/ops/conv.h"
#include "ringgrad/gpu/values.cuh"

#include <numeric>

namespace rg::RG_GPU {

struct Axes {
    int h, w;
    Axes(PerAxis axes) : h(int(axes.h)), w(int(axes.w)) {} // implicit, like PerAxis itself
    bool operator==(const Axes&) const = default;
};

/// Extents of a convolution with filters of r rows and s columns. in_h, in_w and in_c are those of x, and out_h, out_w
/// and out_c those of y. But in the data gradients of conv*.cu, they are those of dy and dx.
struct Geometry {
    int images, in_h, in_w, in_c, out_h, out_w, out_c, r, s;
    Axes stride, pad, dilation;
    // With a stride, a pixel of dx uses only rows (columns) of the filters that are multiples of tap_step apart.
    // Neighbours among these rows read pixels of dy that are dy_step apart, and in the forward pass, pixels of x that
    // are dy_step * stride apart. See TapAxis in halo.cuh.
    Axes tap_step, dy_step;
    __host__ __device__ int64_t pixels() const { return int64_t(images) * out_h * out_w; }
    __host__ __device__ int taps() const { return r * s * in_c; } // values of a filter
};

/// `in` and `out` are shapes [n h w c]: of x and y, or in data_gradient() of dy and dx. `w` holds filters
/// [k r s c/groups].
inline Geometry geometry_of(const Shape& in, const Shape& out, const Tensor& w, const Conv& conv) {
    const PerAxis stride = conv.stride, dilation = conv.dilation;
    const int64_t common_h = std::gcd(stride.h, dilation.h), common_w = std::gcd(stride.w, dilation.w);
    return {int(in[0]),
            int(in[1]),
            int(in[2]),
            int(in[3]),
            int(out[1]),
            int(out[2]),
            int(out[3]),
            int(w.extent(1)),
            int(w.extent(2)),
            stride,
            conv.pad,
            dilation,
            PerAxis(stride.h / common_h, stride.w / common_w),
            PerAxis(dilation.h / common_h, dilation.w / common_w)};
}

} // namespace rg::RG_GPU
