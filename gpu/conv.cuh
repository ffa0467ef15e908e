// Shared by the convolution kernels (conv*.cu): reductions of results, and the kernels that the files offer each other.
#pragma once

#include "gpu/conv_results.cuh"
#include "gpu/geometry.cuh"
#include "gpu/norm.cuh"

namespace rg::RG_GPU {

/// A `term` functor for reduce_slabs() (columns.cuh). Converts a partial of the forward pass (ConvEpilogue::partials)
/// into two sums over its pixels: deviations from the first partial's mean, and their squares. That mean is so close to
/// the total mean that sums in double stay precise. pixels(partial) returns the number of pixels of a partial.
template <class Pixels>
struct AddPartialMoments {
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
/// The steps after the statistics of a channel are known: the coefficients of a batch norm, and the running statistics
/// (see Conv2dOp). A null pointer leaves out its step.
struct AfterStats {
    const float *gamma = nullptr, *beta = nullptr; // if set, `stats` has 4 rows, and the last two get scale and shift
    float epsilon = 0;
    float* running = nullptr; // updated with `momentum`
    double momentum = 0;
};
/// A `finish` functor for reduce_slabs() with AddPartialMoments. Stores a channel's mean and variance, and does the
/// steps of AfterStats.
struct FinishStats {
    const float* moments;
    int64_t pixels;
    int c;
    float* stats;
    AfterStats after;
    double unbias; // unbias_factor(pixels)
    __device__ void operator()(int channel, double sum, double squares) const {
        // All loads come first: the compiler cannot move them before a store.
        const float gamma = after.gamma ? after.gamma[channel] : 0, beta = after.gamma ? after.beta[channel] : 0;
        const float2 old = after.running ? make_float2(after.running[channel], after.running[c + channel]) : float2();
        const float2 batch = moments_of(pixels, pixels > 0 ? double(moments[channel]) : 0, sum, squares);
        const float2 coefficients = scale_and_shift(batch.x, batch.y, gamma, beta, after.epsilon);
        stats[channel] = batch.x, stats[c + channel] = batch.y;
        if (after.gamma) stats[2 * c + channel] = coefficients.x, stats[3 * c + channel] = coefficients.y;
        if (!after.running) return;
        after.running[channel] = moving_average(old.x, batch.x, after.momentum, 1);
        after.running[c + channel] = moving_average(old.y, batch.y, after.momentum, unbias);
    }
};

/// The reductions of a convolution's results over all pixels, per channel. At most one of `stats` and `sums` is set.
struct ChannelReductions {
    Tensor stats; // receives each channel's mean and variance; undefined if not needed
    const NormGradientSums* sums =
        nullptr; // receives the sums of dx for the gradient of a batch norm; null if not needed
    AfterStats after = {};
    explicit operator bool() const { return stats.defined() || sums; }
    /// Returns a functor that stores a channel's statistics.
    FinishStats finish_stats(const float* partials, const ConvGeometry& g) const {
        return {partials, g.pixels(), g.to_c, pointer<float>(stats), after, unbias_factor(g.pixels())};
    }
    /// Reduces `count` partials (see ConvEpilogue) to the results.
    template <class Pixels>
    void finish(const float* partials, unsigned count, const Pixels& pixels, const ConvGeometry& g) const {
        if (stats.defined())
            reduce_slabs(count, g.to_c, AddPartialMoments<Pixels>{partials, pixels, g.to_c}, finish_stats(partials, g));
        if (sums) reduce_slabs(count, g.to_c, SlabSums<float>{partials, g.to_c}, sums->finish());
    }
};

struct KernelChoice; // conv_choice.cuh
struct PackedPlan;   // packed_images.cuh

// ---- functions of other files, for the cases that conv_choice.cuh gives them ----------------------------------------

/// In conv.cu: computes dx of conv2d_grad. `dy` is a reader of dy. If `sums` is not null, also computes these sums of
/// dx.
template <class T, class Reader>
void data_gradient(const KernelChoice& choice, const Reader& dy, const Call& call, const NormGradientSums* sums);

/// In conv_hopper.cu: runs the convolution, or its data gradient.
template <class Reader>
void convolve_on_hopper(const ConvGeometry& g, bool dgrad, const Reader& reader, const GivenFilters& w,
                        ConvEpilogue<bf16> e, bf16* out, const ChannelReductions& reductions);

/// In conv_packed_hopper.cu: runs the convolution.
template <class Reader>
void convolve_packed(const ConvGeometry& g, const PackedPlan& plan, const Reader& reader, const GivenFilters& w,
                     const ConvEpilogue<bf16>& e, bf16* out, const ChannelReductions& reductions);

/// In conv_packed_hopper.cu: runs conv2d_grad with readers of dy and x. `sums` is as in data_gradient().
template <class DyReader, class XReader>
void conv2d_grad_packed(const KernelChoice& choice, const DyReader& dy, const XReader& x, const Call& call,
                        const NormGradientSums* sums);

/// In conv_grad_hopper.cu: computes the weight gradient dw and the bias gradient db.
template <class DyReader, class XReader>
void wgrad_on_hopper(const ConvGeometry& g, const DyReader& dy, const XReader& x, const Tensor& dw, const Tensor& db);

/// A partial of the weight gradient [filters][wgrad_pitch(values)] holds the sums over some of the pixels. Returns the
/// distance from a filter to the next: the values of the filter, one of its bias, and padding. The padding lets a
/// quad of lanes store whole sectors of 32 bytes: parts of a sector cost the L2 cache a read.
__host__ __device__ constexpr int wgrad_pitch(int values) { return (values + 8) / 8 * 8; }

/// In conv_grad.cu: adds `count` partials of the weight gradient (see wgrad_pitch()), and stores dw and db.
void reduce_wgrad(const ConvGeometry& g, int count, const float* partials, const Tensor& dw, const Tensor& db);

/// In linear.cu and conv_groups.cu: run conv2d or conv2d_grad.
void linear_forward(const Call& call);
void linear_grad(const Call& call);
void conv2d_in_groups(const Call& call);
void conv2d_grad_in_groups(const Call& call);

} // namespace rg::RG_GPU
