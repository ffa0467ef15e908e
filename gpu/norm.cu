// The kernels of batch norm and layer norm. For batch norm: statistics, running averages, gradients, and the
// normalisation where no other kernel applies it. For layer norm, a warp computes a row.
#include "core/context.h"
#include "gpu/elementwise.cuh"
#include "gpu/kernels.h"
#include "gpu/norm.cuh"
#include "gpu/reduce.cuh"

namespace rg::RG_GPU {

namespace {

/// Computes the coefficients of class NormCoefficients (norm.cuh): scale and shift, and also b and d if `sums` is not
/// null.
__global__ void batch_norm_coefficients_kernel(const float* stats, const float* gamma, const float* beta, int c,
                                               float epsilon, const float* sums, double count, float* out) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= c) return;
    const float mean = stats[i], variance = stats[c + i];
    const float2 forward = scale_and_shift(mean, variance, gamma[i], beta[i], epsilon);
    out[i] = forward.x, out[c + i] = forward.y;
    if (!sums) return;
    const float2 gradient = b_and_d(mean, variance, gamma[i], epsilon, sums[i], sums[c + i], count);
    out[2 * c + i] = gradient.x, out[3 * c + i] = gradient.y;
}

/// A `term` functor for sum_columns(): sums deviations from the column's value in the first row, and their squares.
/// Sums of the values themselves would lose precision if the values are far from 0.
template <class T>
struct Deviations {
    const T* x;
    int c;
    __device__ void operator()(int64_t row, int column, TwoSums (&sum)[1]) const {
        const float d = load(x + row * c + column) - load(x + column);
        sum[0].first += d;
        sum[0].second += d * d;
    }
};
template <class T>
struct FinishMoments {
    const T* x;
    int64_t rows;
    int c;
    float* stats;
    __device__ void operator()(int column, double sum, double squares) const {
        const float2 moments = moments_of(rows, rows > 0 ? double(load(x + column)) : 0, sum, squares);
        stats[column] = moments.x, stats[c + column] = moments.y;
    }
};

template <class T, int kWidth>
struct NormGradientTerms {
    const T* dy;
    NormTerms<T> terms;
    int c;
    __device__ void operator()(int64_t row, int column, TwoSums (&sum)[kWidth]) const {
        const size_t index = size_t(row) * c + column;
        float dy_values[kWidth], x_values[kWidth];
        VectorReader<kWidth, Plain<T>>({dy}, column).read(index, dy_values);
        VectorReader<kWidth, Plain<T>>({terms.x}, column).read(index, x_values);
        terms.add_of(dy_values, x_values, column, sum);
    }
};

struct BatchNormConcatenate {
    const float *first, *second;
    int c;
    float* out;
    __device__ void operator()(int64_t i) const { out[i] = first[i], out[c + i] = second[i]; }
};

/// Moves the running mean and variance towards those of the batch. The factor `unbias` makes the batch variance
/// unbiased.
struct BatchNormRunningUpdate {
    const float *running, *stats;
    int c;
    double momentum, unbias;
    float* out;
    __device__ void operator()(int64_t i) const {
        out[i] = moving_average(running[i], stats[i], momentum, i >= c ? unbias : 1);
    }
};

constexpr int kWarpRows = kThreads / 32;

/// The statistics of a row: its mean, and 1 / sqrt(variance + epsilon).
struct RowStats {
    float mean, scale;
};

/// Computes the statistics of a row of c values in a warp. Sums deviations from the first value, because sums of the
/// values themselves would lose precision if the values are far from 0.
template <class T>
__device__ __forceinline__ RowStats row_stats(const T* x, int c, int lane, float epsilon) {
    const float first = load(x);
    float sum = 0, squares = 0;
    for (int j = lane; j < c; j += 32) sum += load(x + j) - first;
    const float mean = warp_sum(sum) / float(c);
    for (int j = lane; j < c; j += 32) {
        const float d = load(x + j) - first - mean;
        squares += d * d;
    }
    return {first + mean, 1 / sqrtf(warp_sum(squares) / float(c) + epsilon)};
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    layer_norm_kernel(int64_t rows, int c, const T* x, const float* gamma, const float* beta, float epsilon, T* y) {
    const int64_t row = int64_t(blockIdx.x) * kWarpRows + threadIdx.x / 32;
    const int lane = int(threadIdx.x) % 32;
    if (row >= rows) return;
    const auto [mean, scale] = row_stats(x + row * c, c, lane, epsilon);
    for (int j = lane; j < c; j += 32)
        store(y + row * c + j, (load(x + row * c + j) - mean) * scale * gamma[j] + beta[j]);
}

/// Computes dx, and stores the statistics of each row for LayerNormTerms.
template <class T>
__global__ void __launch_bounds__(kThreads)
    layer_norm_grad_kernel(int64_t rows, int c, const T* dy, const T* x, const float* gamma, float epsilon, T* dx,
                           RowStats* stats) {
    const int64_t row = int64_t(blockIdx.x) * kWarpRows + threadIdx.x / 32;
    const int lane = int(threadIdx.x) % 32;
    if (row >= rows) return;
    const auto [mean, scale] = row_stats(x + row * c, c, lane, epsilon);
    if (lane == 0) stats[row] = {mean, scale};
    float g_mean = 0, product_mean = 0;
    for (int j = lane; j < c; j += 32) {
        const float g = load(dy + row * c + j) * gamma[j];
        g_mean += g;
        product_mean += g * ((load(x + row * c + j) - mean) * scale);
    }
    g_mean = warp_sum(g_mean) / float(c);
    product_mean = warp_sum(product_mean) / float(c);
    for (int j = lane; j < c; j += 32) {
        const float g = load(dy + row * c + j) * gamma[j], hat = (load(x + row * c + j) - mean) * scale;
        store(dx + row * c + j, scale * (g - g_mean - hat * product_mean));
    }
}

/// A `term` functor for sum_columns(): sums the terms of dgamma and dbeta.
template <class T>
struct LayerNormTerms {
    const T *dy, *x;
    const RowStats* stats;
    int c;
    __device__ void operator()(int64_t row, int column, TwoSums (&sum)[1]) const {
        const float g = load(dy + row * c + column);
        sum[0].first += g * ((load(x + row * c + column) - stats[row].mean) * stats[row].scale);
        sum[0].second += g;
    }
};
struct StoreLayerNormSums {
    float *dgamma, *dbeta;
    __device__ void operator()(int column, double gamma_sum, double beta_sum) const {
        dgamma[column] = float(gamma_sum), dbeta[column] = float(beta_sum);
    }
};

} // namespace

NormCoefficients::NormCoefficients(const BatchNormTensors& norm, const Tensor& sums, double count)
    : c_(int(norm.gamma.numel())),
      attrs_(norm.options),
      stats_(pointer<float>(norm.stats)),
      gamma_(pointer<float>(norm.gamma)),
      has_coefficients_(norm.stats.extent(0) == 4 && (!sums.defined() || sums.extent(0) == 4)),
      coefficients_(has_coefficients_ ? 0 : (sums.defined() ? 4 : 2) * size_t(c_)),
      scale_(has_coefficients_ ? stats_ + 2 * c_ : coefficients_),
      b_(has_coefficients_ && sums.defined() ? pointer<float>(sums) + 2 * c_ : coefficients_ + 2 * c_) {
    if (!has_coefficients_)
        RG_LAUNCH(batch_norm_coefficients_kernel, blocks_for(c_, 64), 64, 0, stream(), stats_, gamma_,
                  pointer<float>(norm.beta), c_, attrs_.epsilon, pointer<float>(sums), count, coefficients_);
}

void NormGradientSums::compute() const {
    const int c = norm_.channels();
    with_stored(dy_, [&](auto t) {
        using T = decltype(t);
        with_width(c, [&](auto width) {
            constexpr int kWidth = decltype(width)::value;
            sum_columns<kWidth>(dy_.numel() / c, c, NormGradientTerms<T, kWidth>{pointer<T>(dy_), terms<T>(), c},
                                finish_);
        });
    });
}

void channel_stats(const Call& call) {
    const Tensor& x = call.in[ChannelStatsOp::x];
    const int c = int(x.extent(3));
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        const int64_t rows = x.numel() / c;
        sum_columns<1>(rows, c, Deviations<T>{pointer<T>(x), c},
                       FinishMoments<T>{pointer<T>(x), rows, c, pointer<float>(call.out[0])});
    });
}

void batch_norm(const Call& call) {
    using O = BatchNormOp;
    const NormCoefficients norm(call.attrs.as<O>().norm.given(call.in));
    with_stored(call.in[O::x], [&](auto t) {
        using T = decltype(t);
        const NormReader<T> x = norm.read<T>(call.in[O::x]);
        const Tensor& y = call.out[0];
        const int c = norm.channels();
        elementwise_groups(y.numel(), c, {x.x, pointer<T>(y)},
                           Map<T, NormReader<T>, Identity>{x, pointer<T>(y), c, {}});
    });
}

void batch_norm_grad_sums(const Call& call) {
    using O = BatchNormGradSumsOp;
    const NormCoefficients norm(call.attrs.as<O>().norm.given(call.in));
    NormGradientSums(norm, call.in[O::dy], call.in[O::x], call.out[O::dgamma], call.out[O::dbeta]).compute();
}

void batch_norm_grad(const Call& call) {
    using O = BatchNormGradOp;
    const Tensor& x = call.in[O::x];
    const NormCoefficients norm(call.attrs.as<O>().norm.given(call.in), call.in[O::sums],
                                double(x.numel() / x.extent(3)));
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        const NormGradReader<T> gradient = norm.gradient<T>(call.in[O::dy], x);
        T* const dx = pointer<T>(call.out[0]);
        elementwise_groups(x.numel(), norm.channels(), {gradient.dz, gradient.y, dx},
                           Map<T, NormGradReader<T>, Identity>{gradient, dx, norm.channels(), {}});
    });
}

// combine_stats() and combine_sums() combine batch statistics, or the sums for their gradient, over all ranks. If
// Context::sync is set, the host exchanges these 2 c values. Otherwise, the ops only copy the rank's values.
void combine_stats(const Call& call) {
    if (context().sync) return run_on_host(op::combine_stats, call);
    const float* const stats = pointer<float>(call.in[0]);
    const int c = int(call.in[0].extent(1));
    elementwise(c, BatchNormConcatenate{stats, stats + c, c, pointer<float>(call.out[0])});
}
void combine_sums(const Call& call) {
    if (context().sync) return run_on_host(op::combine_sums, call);
    const int c = int(call.in[0].numel());
    elementwise(c, BatchNormConcatenate{pointer<float>(call.in[0]), pointer<float>(call.in[1]), c,
                                        pointer<float>(call.out[0])});
}

void running_update(const Call& call) {
    using O = RunningUpdateOp;
    const auto& a = call.attrs.as<O>();
    const SyncGroup* group = context().sync;
    const int64_t count = (group ? group->samples : a.images) * a.pixels;
    const int c = int(call.in[O::running].extent(1));
    elementwise(2 * c, BatchNormRunningUpdate{pointer<float>(call.in[O::running]), pointer<float>(call.in[O::stats]), c,
                                              double(a.momentum), unbias_factor(count), pointer<float>(call.out[0])});
}

void layer_norm(const Call& call) {
    using O = LayerNormOp;
    const Tensor& x = call.in[O::x];
    const int64_t c = call.in[O::gamma].numel(), rows = x.numel() / c;
    if (rows == 0) return;
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        RG_LAUNCH(layer_norm_kernel<T>, blocks_for(rows, kWarpRows), kThreads, 0, stream(), rows, int(c), pointer<T>(x),
                  pointer<float>(call.in[O::gamma]), pointer<float>(call.in[O::beta]), call.attrs.as<O>().epsilon,
                  pointer<T>(call.out[0]));
    });
}

void layer_norm_grad(const Call& call) {
    using O = LayerNormGradOp;
    const Tensor &dy = call.in[O::dy], &x = call.in[O::x];
    const int64_t c = call.in[O::gamma].numel(), rows = x.numel() / c;
    const DeviceScratch<RowStats> stats(static_cast<size_t>(rows));
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        if (rows > 0)
            RG_LAUNCH(layer_norm_grad_kernel<T>, blocks_for(rows, kWarpRows), kThreads, 0, stream(), rows, int(c),
                      pointer<T>(dy), pointer<T>(x), pointer<float>(call.in[O::gamma]), call.attrs.as<O>().epsilon,
                      pointer<T>(call.out[O::dx]), stats);
        sum_columns<1>(rows, c, LayerNormTerms<T>{pointer<T>(dy), pointer<T>(x), stats, int(c)},
                       StoreLayerNormSums{pointer<float>(call.out[O::dgamma]), pointer<float>(call.out[O::dbeta])});
    });
}

} // namespace rg::RG_GPU
