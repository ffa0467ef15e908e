// Shared by conv.cu, conv_grad.cu and conv_hopper.cu: extents, the epilogue of a result, and per-channel reductions of
// partial sums.
#pragma once

#include "ringgrad/gpu/norm.cuh"

#include <numeric>

namespace rg::RG_GPU {

struct Axes {
    int h, w;
    Axes(PerAxis axes) : h(int(axes.h)), w(int(axes.w)) {} // implicit, like PerAxis itself
    bool operator==(const Axes&) const = default;
};

/// Extents of a convolution. In the data gradient, in_h, in_w and in_c are the extents of dy; out_h, out_w and out_c
/// are those of dx.
struct Geometry {
    int images, in_h, in_w, in_c, out_h, out_w, out_c, r, s;
    Axes stride, pad, dilation;
    // Data gradient: the distance between neighbouring taps that a pixel of dx uses, and between the pixels of dy that
    // these taps read (see Phase in conv.cu).
    Axes tap_step, dy_step;
    __host__ __device__ int64_t pixels() const { return int64_t(images) * out_h * out_w; }
    __host__ __device__ int taps() const { return r * s * in_c; }
};

/// `in` and `out` are the shapes of the images, w the filters [k r s c].
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

/// The operations on a result before a kernel stores it.
template <class T>
struct Epilogue {
    const float* bias = nullptr; // null if there is none
    bool relu = false;
    const T* residual = nullptr; // added to a data gradient; null if there is none
    /// Receives partial sums [number of partials][2][out_c] over the pixels; null if none are needed. The forward pass
    /// stores means and sums of squared deviations; the data gradient stores the sums of `terms`.
    float* partials = nullptr;
    NormTerms<T> terms = {};
};

/// A term for reduce_slabs(): converts a partial's mean and squared deviations into two sums over its pixels. These are
/// the sum of the deviations from the first partial's mean, and the sum of their squares. The first partial's mean is
/// close enough to the total mean that sums in double stay precise. pixels(partial) returns the number of pixels in a
/// partial.
template <class Pixels>
struct PartialMoments {
    const float* moments;
    Pixels pixels;
    int c;
    __device__ void operator()(int partial, int channel, double& sum, double& squares) const {
        const float* const mean = moments + size_t(partial) * 2 * c + channel;
        const double n = pixels(partial), d = double(mean[0]) - double(moments[channel]);
        sum += n * d;
        squares += double(mean[c]) + n * d * d;
    }
};
/// The finish for reduce_slabs() with PartialMoments: stores a channel's mean and variance.
struct FinishStats {
    const float* moments;
    int64_t pixels;
    int c;
    float* stats;
    __device__ void operator()(int channel, double sum, double squares) const {
        store_moments(stats, c, channel, pixels, pixels > 0 ? double(moments[channel]) : 0, sum, squares);
    }
};

/// The per-channel reductions of the results over all pixels. At most one of `stats` and `sums` is set.
struct ChannelReductions {
    Tensor stats;                   // receives the batch statistics; undefined if not needed
    const NormSums* sums = nullptr; // the sums of a data gradient for batch norm; null if not needed
    explicit operator bool() const { return stats.defined() || sums; }
    /// Reduces partials [count][2][out_c] of an Epilogue.
    template <class Pixels>
    void finish(const float* partials, unsigned count, const Pixels& pixels, const Geometry& g) const {
        if (stats.defined())
            reduce_slabs(count, g.out_c, PartialMoments<Pixels>{partials, pixels, g.out_c},
                         FinishStats{partials, g.pixels(), g.out_c, pointer<float>(stats)});
        if (sums) reduce_slabs(count, g.out_c, SlabSums<float>{partials, g.out_c}, sums->finish());
    }
};

/// Defined in conv_hopper.cu. Runs the convolution, or its data gradient, with the Hopper kernel and returns true.
/// Returns false and does nothing if that kernel is not enabled (GpuTraits) or does not cover the case.
template <class Reader>
bool convolve_on_hopper(const Geometry& g, bool dgrad, const Reader& reader, const bf16* w, Epilogue<bf16> e, bf16* out,
                        const ChannelReductions& reductions);

/// Defined in conv_groups.cu. The ops with Conv::groups > 1.
void conv2d_in_groups(const Call& call);
void conv2d_grad_in_groups(const Call& call);

} // namespace rg::RG_GPU
