// Batch norm's per-channel coefficients for readers (values.cuh), and the per-channel sums that its gradient needs.
#pragma once

#include "gpu/columns.cuh"

namespace rg::RG_GPU {

/// Coefficients of the normalisation: scale = gamma / sigma and shift = beta - mean * scale, with sigma^2 = variance +
/// epsilon. `sums` holds sum(dz x^) and sum(dz) over the `count` values of a channel, where x^ is the normalised x. If
/// it is defined, Norm also has the coefficients b and d of the gradient: dx = gamma / sigma * (dz - sum(dz) / count -
/// x^ * sum(dz x^) / count) = scale dz + b x + d.
class Norm {
public:
    Norm(const Tensor& stats, const Tensor& gamma, const Tensor& beta, float epsilon, const Tensor& sums = {},
         double count = 0);
    const float* scale() const { return coefficients_; }
    const float* shift() const { return coefficients_ + c_; }
    int channels() const { return c_; }
    /// Returns a reader of the normalised x.
    template <class T>
    Normalised<T> read(const Tensor& x, bool relu) const {
        return {pointer<T>(x), scale(), shift(), relu};
    }
    /// Returns a reader of the gradient with respect to x. Precondition: the sums were given.
    template <class T>
    NormGradient<T> gradient(const Tensor& dz, const Tensor& x, bool relu) const {
        return {pointer<T>(dz), pointer<T>(x), scale(), shift(), shift() + c_, shift() + 2 * c_, relu};
    }

private:
    int c_;
    Scratch<float> coefficients_; // scale, shift, b, d; c values each
};

/// The terms that a value of dy adds to its channel's two sums: g (x - mean) and g. g is dy, or 0 where the forward
/// ReLU gave 0.
template <class T>
struct NormTerms {
    const T* x;
    const float *scale, *shift, *mean;
    bool relu;
    __device__ __forceinline__ void add(float dy, size_t index, int c, TwoSums& sum) const {
        add_of(dy, load(x + index), c, sum);
    }
    __device__ __forceinline__ void add_of(float dy, float x_value, int c, TwoSums& sum) const {
        if (relu && x_value * scale[c] + shift[c] <= 0) return;
        sum.first += dy * (x_value - mean[c]);
        sum.second += dy;
    }
};
/// Converts a channel's sums of these terms into dgamma and dbeta.
struct FinishNormSums {
    const float* stats;
    int c;
    float epsilon;
    float *dgamma, *dbeta;
    __device__ void operator()(int column, double dot, double sum) const {
        dgamma[column] = float(dot / sqrt(double(stats[c + column]) + double(epsilon)));
        dbeta[column] = float(sum);
    }
};

/// dgamma = sum of g x^ and dbeta = sum of g over a channel. Either the kernel that computes dy adds terms() and calls
/// finish(), or compute() reads dy from memory.
class NormSums {
public:
    NormSums(const Norm& norm, const Tensor& dy, const Tensor& x, const Tensor& stats, bool relu, float epsilon,
             const Tensor& dgamma, const Tensor& dbeta)
        : norm_(norm),
          dy_(dy),
          x_(x),
          mean_(pointer<float>(stats)),
          relu_(relu),
          finish_{mean_, norm.channels(), epsilon, pointer<float>(dgamma), pointer<float>(dbeta)} {}
    template <class T>
    NormTerms<T> terms() const {
        return {pointer<T>(x_), norm_.scale(), norm_.shift(), mean_, relu_};
    }
    const FinishNormSums& finish() const { return finish_; }
    void compute() const; // in norm.cu

private:
    const Norm& norm_;
    Tensor dy_, x_;
    const float* mean_;
    bool relu_;
    FinishNormSums finish_;
};

/// Defined in conv.cu. Computes the data gradient dx of a convolution, plus `residual` if defined, with dy from a
/// reader. Also computes `sums` of dx if not null. Of `a`, uses stride and pad.
template <class T>
void data_gradient(const NormGradient<T>& dy, const Shape& dy_shape, const Tensor& w, const Attrs& a,
                   const Tensor& residual, const Tensor& dx, const NormSums* sums);

/// Defined in pool.cu. Max pooling of x [n h w c] with non-overlapping windows.
template <class T>
void max_pool(const T* x, const Shape& x_shape, int window, T* y);

} // namespace rg::RG_GPU
