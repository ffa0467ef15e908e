// What the kernels of conv.cu and conv_hopper.cu share: extents, what is done with a result, statistics from parts.
#pragma once

#include "gpu/norm.cuh"

namespace rg::RG_GPU {

/// The extents as the product sees them: `in` is read, `out` is made.
struct Geometry {
    int images, in_h, in_w, in_c, out_h, out_w, out_c, r, s, stride, pad;
    __host__ __device__ int64_t pixels() const { return int64_t(images) * out_h * out_w; }
    __host__ __device__ int taps() const { return r * s * in_c; }
};

template <class T>
struct Epilogue {
    const float* bias = nullptr; // null: none
    bool relu = false;
    const T* residual = nullptr; // what is added to a gradient; null: nothing
    /// [parts of the pixels][2][out_c]: mean and squared deviations, of a gradient the sums of its terms; null: not
    /// wanted
    float* parts = nullptr;
    NormTerms<T> terms = {};
};

/// A part's values of a channel as a sum of deviations from the first part's mean, and of their squares. Their mean is
/// so close to that of all that doubles lose nothing. pixels(part): how many values of a channel it has.
template <class Pixels>
struct PartMoments {
    const float* moments;
    Pixels pixels;
    int c;
    __device__ void operator()(int part, int channel, double& sum, double& squares) const {
        const float* const at = moments + size_t(part) * 2 * c + channel;
        const double n = pixels(part), d = double(at[0]) - double(moments[channel]);
        sum += n * d;
        squares += double(at[c]) + n * d * d;
    }
};
struct FinishStats {
    const float* moments;
    int64_t pixels;
    int c;
    float* stats;
    __device__ void operator()(int channel, double sum, double squares) const {
        store_moments(stats, c, channel, pixels, pixels > 0 ? double(moments[channel]) : 0, sum, squares);
    }
};

/// What is wanted of the results by channel, over all pixels.
struct Wanted {
    Tensor stats;                   // where their batch statistics go, or undefined
    const NormSums* sums = nullptr; // of a gradient, or null
    explicit operator bool() const { return stats.defined() || sums; }
    /// From parts [count][2][out_c], as Epilogue has them.
    template <class Pixels>
    void finish(const float* parts, unsigned count, const Pixels& pixels, const Geometry& g) const {
        if (stats.defined())
            add_up(count, g.out_c, PartMoments<Pixels>{parts, pixels, g.out_c},
                   FinishStats{parts, g.pixels(), g.out_c, pointer<float>(stats)});
        if (sums) add_up(count, g.out_c, SlabSums<float>{parts, g.out_c}, sums->finish());
    }
};

/// Of conv_hopper.cu: whether it has done this, which else is for the portable kernel.
template <class Read>
bool convolve_on_hopper(const Geometry& g, bool gradient, const Read& read, const bf16* w, Epilogue<bf16> e, bf16* out,
                        const Wanted& wanted);

} // namespace rg::RG_GPU
