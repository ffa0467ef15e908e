// What the kernels around the instruction sets share: how values are stored, per-channel numbers in the form that
// StoredKernels take, sums over images that do not depend on the threads.
#pragma once

#include "core/cpu/isa.h"
#include "core/cpu/scratch.h"
#include "core/cpu/thread_pool.h"
#include "core/tensor.h"

#include <algorithm>
#include <numeric>

namespace rg::cpu {

/// The values as the kernels take them: float, or uint16_t for the bits of bf16.
template <class T>
T* stored(const Tensor& t);
template <>
inline float* stored<float>(const Tensor& t) {
    return t.data<float>();
}
template <>
inline uint16_t* stored<uint16_t>(const Tensor& t) {
    return reinterpret_cast<uint16_t*>(t.data<bf16>());
}

/// Calls f with a value of the type that the tensor's elements are stored as.
template <class F>
void with_stored(const Tensor& t, F f) {
    return t.dtype() == DType::bf16 ? f(uint16_t{}) : f(float{});
}

template <class T>
const StoredKernels<T>& kernels();
template <>
inline const StoredKernels<float>& kernels<float>() {
    return isa().elements->f32;
}
template <>
inline const StoredKernels<uint16_t>& kernels<uint16_t>() {
    return isa().elements->bf16;
}

/// The smallest common multiple of the channels and the vector width.
inline int64_t period_of(int64_t channels) { return std::lcm(channels, int64_t{isa().width}); }

/// `channels` values repeated to a whole period.
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

/// Runs f(image index) over all images, many per task.
template <class F>
void each_image(int64_t images, F f) {
    constexpr int64_t kTasks = 64;
    const int64_t tasks = std::min(images, kTasks);
    parallel(tasks, [&](int64_t task) {
        for (int64_t n = images * task / tasks; n < images * (task + 1) / tasks; ++n) f(n);
    });
}

/// Mean and squared deviations of each channel over a number of images, collected image by image, in double.
/// add() may be called for different images at the same time; finish() combines in order of the images
/// (Chan, Golub and LeVeque, 1979), so the result does not depend on the threads.
class StatsCollector {
public:
    StatsCollector(int64_t images, int64_t pixels, int64_t channels);
    /// `values`: the [pixels channels] values of the image.
    template <class T>
    void add(int64_t image, const T* values);
    /// The same from sums over the image of (value - shift) and (value - shift)^2, each [lanes]: a multiple of the
    /// channels, each lane with as many of the pixels as any other.
    void add_sums(int64_t image, int64_t lanes, const float* shift, const float* sum, const float* squares);
    /// stats [2 channels]: mean, biased variance.
    void finish(const Tensor& stats) const;

private:
    /// Adds a part of the values, of `pixels` with this mean, to those of `before`.
    static void join(double before, double pixels, double mean, double squares, double& all_mean, double& all_squares);

    int64_t images_, pixels_, channels_;
    Scratch<double> moments_; // per image: mean, sum of squared deviations
};

} // namespace rg::cpu
