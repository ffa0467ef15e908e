// Helpers for the code that calls the kernels: access to stored values, per-channel values in the form that
// StoredKernels (kernels.h) expects, and statistics over images that do not depend on the number of threads.
#pragma once

#include "core/cpu/isa.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/tensor.h"

#include <algorithm>
#include <numeric>

namespace rg::cpu {

/// Returns a pointer to the tensor's values in the type that the kernels use: float, or uint16_t for the bits of bf16.
template <class T>
T* stored(const Tensor& t) {
    if constexpr (std::is_same_v<T, float>)
        return t.data<float>();
    else
        return reinterpret_cast<uint16_t*>(t.data<bf16>());
}

/// Calls f with a zero of the type that the kernels use for this tensor, float or uint16_t, so that f learns the type.
template <class F>
void with_stored(const Tensor& t, F f) {
    return t.dtype() == DType::bf16 ? f(uint16_t{}) : f(float{});
}

/// Returns the kernels for values that are stored as T.
template <class T>
const StoredKernels<T>& kernels() {
    if constexpr (std::is_same_v<T, float>)
        return isa().elements->f32;
    else
        return isa().elements->bf16;
}

/// Returns the least common multiple of the number of channels and the vector width.
inline int64_t period_of(int64_t channels) { return std::lcm(channels, int64_t{isa().width}); }

/// Holds one value per channel, repeated until the values fill a period (see period_of()).
class PerChannel {
public:
    template <class F>
    PerChannel(int64_t channels, F value) : values_(period_of(channels)) {
        for (int64_t c = 0; c < channels; ++c) values_[c] = value(c);
        for (int64_t i = channels; i < period_of(channels); ++i) values_[i] = values_[i - channels];
    }
    operator const float*() const { return values_.data(); }

private:
    Scratch<float> values_;
};

/// Computes the mean and the biased variance of each channel over all images. Sums at most kPart pixels of an image in
/// float, so that rounding errors stay small, and combines these sums in double. Call add() or add_sums() once for each
/// image; threads may do so for different images at the same time. finish() combines the images in order (Chan, Golub
/// and LeVeque, 1979), so the result does not depend on the number of threads.
class StatsCollector {
public:
    static constexpr int64_t kPart = 1024; // pixels
    StatsCollector(int64_t images, int64_t pixels, int64_t channels);
    /// Adds an image from its values [pixels channels].
    template <class T>
    void add(int64_t image, const T* values) {
        add(image, 0, pixels_, values);
    }
    /// Adds the `pixels` pixels from pixel `before` on, whose values begin at `values`. The calls for an image must go
    /// from its first pixel to its last.
    template <class T>
    void add(int64_t image, int64_t before, int64_t pixels, const T* values);
    /// Adds an image from its sums of (value - shift) and of (value - shift)^2. `shift` and both sums have one value
    /// per lane, and lane i belongs to channel i % channels. `lanes` is a multiple of the number of channels. Each lane
    /// must have the sums of the same number of pixels. Use it for images of at most kPart pixels.
    void add_sums(int64_t image, int64_t lanes, const float* shift, const float* sum, const float* squares);
    /// Writes the means (row 0) and the biased variances (row 1) to stats [2 channels].
    void finish(const Tensor& stats) const;

private:
    /// `mean` and `squares` are the mean and the sum of squared deviations of `pixels` values; all_mean and all_squares
    /// are those of `pixels_before` other values. Changes all_mean and all_squares to those of both sets.
    static void combine(double pixels_before, double pixels, double mean, double squares, double& all_mean,
                        double& all_squares);

    /// Adds sums of some pixels of an image, as add_sums() does for all: of the `pixels` pixels from pixel `before` on.
    void add_part(int64_t image, int64_t before, int64_t pixels, int64_t lanes, const float* shift, const float* sum,
                  const float* squares);

    int64_t images_, pixels_, channels_;
    Scratch<double> moments_; // per image: the means [channels], then the sums of squared deviations [channels]
};

} // namespace rg::cpu
