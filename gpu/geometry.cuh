// The extents and the filters of a convolution, as its kernels (conv*.cu) take them.
//
// In shapes such as [n h w c], n is the number of images, and h, w and c are their rows, columns and channels. k is the
// number of filters, and r and s are the rows and columns of a filter.
#pragma once

#include "core/ops/conv.h"
#include "gpu/values.cuh"

#include <numeric>

namespace rg::RG_GPU {

struct Axes {
    int h, w;
    Axes(PerAxis axes) : h(int(axes.h)), w(int(axes.w)) {} // implicit, like PerAxis itself
    bool operator==(const Axes&) const = default;
};

/// Extents of a convolution with filters of r rows and s columns. from_h, from_w and from_c are those of the tensor
/// that the filters are applied to, and to_h, to_w and to_c those of the result. In the forward pass, these are x and
/// y. In the data gradient, they are dy and dx. The weight gradient has the geometry of the forward pass.
struct ConvGeometry {
    int images, from_h, from_w, from_c, to_h, to_w, to_c, r, s;
    Axes stride, pad, dilation;
    // With a stride, a pixel of dx uses only rows (columns) of the filters that are multiples of tap_step apart.
    // Neighbours among these rows read pixels of dy that are dy_step apart, and in the forward pass, pixels of x that
    // are dy_step * stride apart. See TapAxis in halo.cuh.
    Axes tap_step, dy_step;
    __host__ __device__ int64_t pixels() const { return int64_t(images) * to_h * to_w; }
    __host__ __device__ int filter_values() const { return r * s * from_c; } // values of a filter
};

/// Returns the ConvGeometry for these shapes [n h w c] of the two tensors, and for filters w [k r s c/groups].
inline ConvGeometry geometry_of(const Shape& from, const Shape& to, const Tensor& w, const Conv& conv) {
    const PerAxis stride = conv.stride, dilation = conv.dilation;
    const int64_t common_h = std::gcd(stride.h, dilation.h), common_w = std::gcd(stride.w, dilation.w);
    const Axes tap_step = PerAxis(stride.h / common_h, stride.w / common_w);
    const Axes dy_step = PerAxis(dilation.h / common_h, dilation.w / common_w);
    return {int(from[0]),     int(from[1]),     int(from[2]), int(from[3]), int(to[1]), int(to[2]), int(to[3]),
            int(w.extent(1)), int(w.extent(2)), stride,       conv.pad,     dilation,   tap_step,   dy_step};
}

/// Filters as an op gets them: in f32, or already rounded to bf16. The other pointer is null.
struct GivenFilters {
    const float* f32 = nullptr;
    const bf16* rounded = nullptr;
    GivenFilters(const float* w) : f32(w) {}
    GivenFilters(const bf16* w) : rounded(w) {}
    GivenFilters(const Tensor& w) {
        if (w.dtype() == DType::bf16)
            rounded = pointer<bf16>(w);
        else
            f32 = pointer<float>(w);
    }
    /// Calls f with the pointer that is not null.
    template <class F>
    __host__ __device__ __forceinline__ void visit(const F& f) const {
        f32 ? f(f32) : f(rounded);
    }
};

} // namespace rg::RG_GPU
