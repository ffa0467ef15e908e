// Per-channel numbers in the form that ElementKernels take, and sums over images that do not depend on the threads.
#pragma once

#include "core/cpu/isa.h"
#include "core/cpu/thread_pool.h"
#include "core/tensor.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace rg::cpu {

/// The smallest common multiple of the channels and the vector width.
inline int64_t period_of(int64_t channels) { return std::lcm(channels, int64_t{isa().width}); }

/// `channels` values repeated to a whole period, with zeros to the end of the last vector.
class PerChannel {
public:
    template <class F>
    PerChannel(int64_t channels, F value) : values_(size_t(period_of(channels))) {
        for (int64_t c = 0; c < channels; ++c) values_[size_t(c)] = value(c);
        for (size_t i = size_t(channels); i < values_.size(); ++i) values_[i] = values_[i - size_t(channels)];
    }
    operator const float*() const { return values_.data(); }

private:
    std::vector<float> values_;
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
    void add(int64_t image, const float* values);
    /// stats [2 channels]: mean, biased variance.
    void finish(const Tensor& stats) const;

private:
    int64_t images_, pixels_, channels_, period_;
    std::vector<double> moments_; // per image: mean, sum of squared deviations
};

} // namespace rg::cpu
