// Batch norm and layer norm. Threads share the images of a batch norm (loops of elements_isa.cpp), and the rows of a
// layer norm (loops of norm_isa.cpp).
#include "core/cpu/norm.h"
#include "core/context.h"

namespace rg::cpu {

StatsCollector::StatsCollector(int64_t images, int64_t pixels, int64_t channels)
    : images_(images), pixels_(pixels), channels_(channels), moments_(images * 2 * channels) {}

template <class T>
void StatsCollector::add(int64_t image, int64_t before, int64_t pixels, const T* values) {
    const int64_t period = period_of(channels_);
    const Scratch<float> first(channels_), sums(2 * period);
    // Sum the deviations from the first pixel of each part. These are usually of the order of the standard deviation,
    // so the subtraction of squares in add_part() loses few digits.
    for (int64_t i = 0; i < pixels; i += kPart) {
        const int64_t in_part = std::min(kPart, pixels - i);
        const T* const part = values + i * channels_;
        if constexpr (std::is_same_v<T, float>)
            std::copy_n(part, channels_, first.data());
        else
            isa().elements->widen(part, first, channels_);
        const PerChannel shift(channels_, [&](int64_t c) { return first[c]; });
        float *const sum = sums.zeroed(), *const squares = sum + period;
        kernels<T>().channel_sums(part, in_part * channels_, period, shift, sum, squares);
        for (int64_t lane = channels_; lane < period; ++lane) {
            sum[lane % channels_] += sum[lane];
            squares[lane % channels_] += squares[lane];
        }
        add_part(image, before + i, in_part, channels_, first, sum, squares);
    }
}
template void StatsCollector::add(int64_t, int64_t, int64_t, const float*);
template void StatsCollector::add(int64_t, int64_t, int64_t, const uint16_t*);

void StatsCollector::combine(double pixels_before, double pixels, double mean, double squares, double& all_mean,
                             double& all_squares) {
    const double delta = mean - all_mean, fraction = pixels / (pixels_before + pixels);
    all_mean += delta * fraction;
    all_squares += squares + delta * delta * pixels_before * fraction;
}

void StatsCollector::add_sums(int64_t image, int64_t lanes, const float* shift, const float* sum,
                              const float* squares) {
    add_part(image, 0, pixels_, lanes, shift, sum, squares);
}

void StatsCollector::add_part(int64_t image, int64_t before, int64_t pixels, int64_t lanes, const float* shift,
                              const float* sum, const float* squares) {
    double *const mean = moments_ + image * 2 * channels_, *const deviations = mean + channels_;
    if (before == 0) std::fill_n(mean, 2 * channels_, 0.0);
    const double count = double(pixels * channels_ / lanes); // pixels per lane
    for (int64_t i = 0; i < lanes; ++i)
        combine(double(before) + double(i / channels_) * count, count, shift[i] + double(sum[i]) / count,
                std::max(0.0, squares[i] - double(sum[i]) * sum[i] / count), mean[i % channels_],
                deviations[i % channels_]);
}

void StatsCollector::finish(const Tensor& stats) const {
    const Scratch<double> totals(2 * channels_);
    double *const mean = totals.zeroed(), *const deviations = mean + channels_;
    for (int64_t n = 0; n < images_; ++n) {
        const double* m = moments_ + n * 2 * channels_;
        for (int64_t c = 0; c < channels_; ++c)
            combine(double(n * pixels_), double(pixels_), m[c], m[channels_ + c], mean[c], deviations[c]);
    }
    for (int64_t c = 0; c < channels_; ++c) {
        stats.data<float>()[c] = float(mean[c]);
        stats.data<float>()[channels_ + c] = images_ ? float(deviations[c] / double(images_ * pixels_)) : 0;
    }
}

void channel_stats(const Call& call) {
    const Tensor& x = call.in[ChannelStatsOp::x];
    StatsCollector stats(x.extent(0), x.extent(1) * x.extent(2), x.extent(3));
    each_stored_image(x, [&]<class T>(T, int64_t n, int64_t first) { stats.add(n, stored<T>(x) + first); });
    stats.finish(call.out[0]);
}

void batch_norm(const Call& call) {
    using O = BatchNormOp;
    const Tensor &x = call.in[O::x], &y = call.out[0];
    const AffineNorm norm(call.attrs.as<O>().norm.given(call.in));
    const int64_t values = image_values(x);
    const bool past = past_cache(y);
    each_stored_image(x, [&]<class T>(T, int64_t, int64_t first) {
        norm.apply(stored<T>(x) + first, stored<T>(y) + first, values, past);
    });
}

void batch_norm_grad_sums(const Call& call) {
    using O = BatchNormGradSumsOp;
    const Tensor &dy = call.in[O::dy], &x = call.in[O::x];
    const AffineNorm norm(call.attrs.as<O>().norm.given(call.in));
    NormSums sums(norm, x.extent(0));
    const int64_t values = image_values(x);
    each_stored_image(x, [&]<class T>(T, int64_t n, int64_t first) {
        sums.add(n, stored<T>(dy) + first, stored<T>(x) + first, values);
    });
    sums.finish(call.out[O::dgamma], call.out[O::dbeta]);
}

void batch_norm_grad(const Call& call) {
    using O = BatchNormGradOp;
    const Tensor &dy = call.in[O::dy], &x = call.in[O::x], &dx = call.out[0];
    const AffineNorm norm(call.attrs.as<O>().norm.given(call.in));
    const NormGrad grad(norm, call.in[O::sums], double(x.numel() / norm.c));
    const int64_t values = image_values(x);
    const bool past = past_cache(dx);
    each_stored_image(x, [&]<class T>(T, int64_t, int64_t first) {
        grad.apply(stored<T>(dy) + first, stored<T>(x) + first, stored<T>(dx) + first, values, past);
    });
}

namespace {

/// Number of rows of a layer norm in a task. It is fixed, so that the result does not depend on the number of threads.
constexpr int64_t kTaskRows = 128;
int64_t row_tasks(int64_t rows) { return (rows + kTaskRows - 1) / kTaskRows; }

/// Calls f(task, index of its first value, its number of rows) for all tasks, in parallel.
template <class F>
void each_rows(int64_t rows, int64_t c, F f) {
    parallel(row_tasks(rows),
             [&](int64_t task) { f(task, task * kTaskRows * c, std::min(kTaskRows, rows - task * kTaskRows)); });
}

template <class T>
const RowNormKernels<T>& row_norm() {
    if constexpr (std::is_same_v<T, float>)
        return isa().norm->f32;
    else
        return isa().norm->bf16;
}

} // namespace

void layer_norm(const Call& call) {
    using O = LayerNormOp;
    const Tensor &x = call.in[O::x], &gamma = call.in[O::gamma];
    const int64_t c = gamma.numel();
    const float epsilon = call.attrs.as<O>().epsilon;
    with_stored(x, [&]<class T>(T) {
        each_rows(x.numel() / c, c, [&](int64_t, int64_t first, int64_t rows) {
            row_norm<T>().forward(stored<T>(x) + first, stored<T>(call.out[0]) + first, rows, c, gamma.data<float>(),
                                  call.in[O::beta].data<float>(), epsilon);
        });
    });
}

void layer_norm_grad(const Call& call) {
    using O = LayerNormGradOp;
    const Tensor &dy = call.in[O::dy], &x = call.in[O::x], &gamma = call.in[O::gamma], &dx = call.out[O::dx];
    const int64_t c = gamma.numel(), tasks = row_tasks(x.numel() / c);
    const float epsilon = call.attrs.as<O>().epsilon;
    const Scratch<float> parts(tasks * 2 * c); // per task: dgamma [c] and dbeta [c]
    parts.zeroed();
    with_stored(x, [&]<class T>(T) {
        each_rows(x.numel() / c, c, [&](int64_t task, int64_t first, int64_t rows) {
            float* const part = parts + task * 2 * c;
            row_norm<T>().backward(stored<T>(dy) + first, stored<T>(x) + first, stored<T>(dx) + first, rows, c,
                                   gamma.data<float>(), epsilon, part, part + c);
        });
    });
    const Scratch<double> sums(2 * c);
    sums.zeroed();
    for (int64_t task = 0; task < tasks; ++task)
        for (int64_t i = 0; i < 2 * c; ++i) sums[i] += double(parts[task * 2 * c + i]);
    for (int64_t i = 0; i < c; ++i) {
        call.out[O::dgamma].data<float>()[i] = float(sums[i]);
        call.out[O::dbeta].data<float>()[i] = float(sums[c + i]);
    }
}

// Processes only a few values per channel, so it uses one thread.
void combine_sums(const Call& call) {
    if (context().sync) return op::combine_sums->reference(call);
    const int64_t c = call.in[0].numel();
    for (size_t i : {0, 1}) std::copy_n(call.in[i].data<float>(), c, call.out[0].data<float>() + int64_t(i) * c);
}

} // namespace rg::cpu
