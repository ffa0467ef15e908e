// Batch norm's per-channel coefficients for readers (values.cuh), and the per-channel sums that its gradient needs.
#pragma once

#include "core/ops/conv.h"
#include "gpu/columns.cuh"

namespace rg::RG_GPU {

/// Returns the coefficients scale and shift of a channel (see class NormCoefficients).
inline __device__ float2 scale_and_shift(float mean, float variance, float gamma, float beta, float epsilon) {
    const float scale = float(double(gamma) / std::sqrt(double(variance) + double(epsilon)));
    return make_float2(scale, float(double(beta) - double(mean) * double(scale)));
}
/// Returns the coefficients b and d of a channel (see class NormCoefficients). dgamma is sum(dz x^), and dbeta is
/// sum(dz).
inline __device__ float2 b_and_d(float mean, float variance, float gamma, float epsilon, float dgamma, float dbeta,
                                 double count) {
    const double sigma = std::sqrt(double(variance) + double(epsilon)), scale = double(gamma) / sigma;
    const double b = -scale / sigma * double(dgamma) / count;
    return make_float2(float(b), float(-scale * double(dbeta) / count - b * double(mean)));
}

/// Returns the mean of both, `batch` with the weight `new_weight`. `unbias`: unbias_factor() for a variance, else 1.
inline __device__ float moving_average(float running, float batch, double new_weight, double unbias) {
    return float((1 - new_weight) * double(running) + new_weight * (double(batch) * unbias));
}
/// Returns the factor that makes the variance of `count` values unbiased.
inline double unbias_factor(int64_t count) { return count > 1 ? double(count) / double(count - 1) : 1; }

/// Coefficients of batch norm: scale = gamma / sigma and shift = beta - mean * scale, with sigma^2 = variance +
/// epsilon. `sums` holds sum(dz x^) and sum(dz) over the `count` values of a channel. x^ is (x - mean) / sigma, and dz
/// is the gradient with respect to the result before ReLU. If `sums` is defined, NormCoefficients also has the
/// coefficients b and d of the gradient: dx = gamma / sigma * (dz - sum(dz) / count - x^ * sum(dz x^) / count) = scale
/// dz + b x + d.
class NormCoefficients {
public:
    /// If the statistics and, where defined, sums have 4 rows (core/ops/norm.h), these include the coefficients.
    /// Otherwise, a kernel computes them.
    explicit NormCoefficients(const BatchNormTensors& norm, const Tensor& sums = {}, double count = 0);
    const float* scale() const { return scale_; }
    const float* shift() const { return scale_ + c_; }
    const float* stats() const { return stats_; }
    const float* gamma() const { return gamma_; }
    int channels() const { return c_; }
    const BatchNorm& attrs() const { return attrs_; }
    /// Returns a reader of the normalised x.
    template <class T>
    NormReader<T> read(const Tensor& x) const {
        return {pointer<T>(x), scale(), shift(), is_relu(attrs_.activation)};
    }
    /// Returns a reader of the gradient with respect to x. Requires that the constructor got sums.
    template <class T>
    NormGradReader<T> gradient(const Tensor& dz, const Tensor& x) const {
        return {pointer<T>(dz), pointer<T>(x), scale(), shift(), b_, b_ + c_, is_relu(attrs_.activation)};
    }

private:
    int c_;
    BatchNorm attrs_;
    const float *stats_, *gamma_;
    bool has_coefficients_;
    DeviceScratch<float> coefficients_; // scale, shift and, with sums, b, d: c values each; empty if has_coefficients_
    const float *scale_, *b_;           // shift follows scale, and d follows b
};

/// Calls f with a reader of the operand, which normalises x if the operand has a batch norm.
template <class T, class F>
void with_reader(const Operand& operand, F f) {
    if (!operand.norm) return f(Plain<T>{pointer<T>(operand.x)});
    const NormCoefficients norm(operand.norm);
    f(norm.read<T>(operand.x));
}

/// The terms that a value of dy adds to its channel's two sums: g (x - mean) and g. x is batch norm's input, and dy is
/// the gradient with respect to batch norm's output. g is dy, but if `relu` is set, 0 where the ReLU gave 0.
template <class T>
struct NormTerms {
    const T* x;
    const float *scale, *shift, *mean;
    bool relu;
    __device__ __forceinline__ void add_of(float dy, float x_value, int c, TwoSums& sum) const {
        if (relu && x_value * scale[c] + shift[c] <= 0) return;
        sum.first += dy * (x_value - mean[c]);
        sum.second += dy;
    }
    /// Does the same for kWidth channels from c on; kWidth is 1 or 8.
    template <int kWidth>
    __device__ __forceinline__ void add_of(const float (&dy)[kWidth], const float (&x_values)[kWidth], int c,
                                           TwoSums (&sum)[kWidth]) const {
        if constexpr (kWidth == 1) return add_of(dy[0], x_values[0], c, sum[0]);
        float scales[8], shifts[8], means[8];
        load_8(scale + c, scales), load_8(shift + c, shifts), load_8(mean + c, means);
        const NormTerms of_8{x, scales, shifts, means, relu};
        RG_UNROLL
        for (int i = 0; i < kWidth; ++i) of_8.add_of(dy[i], x_values[i], i, sum[i]);
    }
};
/// Converts a channel's two sums of NormTerms into dgamma and dbeta, the gradients of batch norm's parameters. If
/// `sums` [4][c] is not null, it receives dgamma, dbeta, and the coefficients b and d for `count` values per channel.
struct FinishNormGradientSums {
    const float *stats, *gamma;
    int c;
    float epsilon;
    float *dgamma, *dbeta, *sums;
    double count;
    __device__ void operator()(int column, double dot, double sum) const {
        const float mean = stats[column], variance = stats[c + column], scale = gamma[column];
        const float product = float(dot / std::sqrt(double(variance) + double(epsilon)));
        dgamma[column] = product;
        dbeta[column] = float(sum);
        if (!sums) return;
        const float2 coefficients = b_and_d(mean, variance, scale, epsilon, product, float(sum), count);
        sums[column] = product, sums[c + column] = float(sum);
        sums[2 * c + column] = coefficients.x, sums[3 * c + column] = coefficients.y;
    }
};

/// Computes dgamma = sum of g x^ and dbeta = sum of g for each channel, with g as in NormTerms and x^ as in
/// NormCoefficients. There are two ways. compute() reads dy from memory. Or the kernel that computes dy also sums the
/// terms(), and finish() converts the totals. If `sums` [4 c] is defined and not empty, also computes its rows
/// (FinishNormGradientSums).
class NormGradientSums {
public:
    NormGradientSums(const NormCoefficients& norm, const Tensor& dy, const Tensor& x, const Tensor& dgamma,
                     const Tensor& dbeta, const Tensor& sums = {})
        : norm_(norm),
          dy_(dy),
          x_(x),
          finish_{norm.stats(),
                  norm.gamma(),
                  norm.channels(),
                  norm.attrs().epsilon,
                  pointer<float>(dgamma),
                  pointer<float>(dbeta),
                  sums.numel() > 0 ? pointer<float>(sums) : nullptr,
                  double(dy.numel() / norm.channels())} {}
    template <class T>
    NormTerms<T> terms() const {
        return {pointer<T>(x_), norm_.scale(), norm_.shift(), norm_.stats(), is_relu(norm_.attrs().activation)};
    }
    const FinishNormGradientSums& finish() const { return finish_; }
    void compute() const; // in norm.cu

private:
    const NormCoefficients& norm_;
    Tensor dy_, x_;
    FinishNormGradientSums finish_;
};

} // namespace rg::RG_GPU
