// Batch norm's coefficients by channel, as the kernels that read activations take them (values.cuh), and the sums that
// its gradient needs, as those that make one take them.
#pragma once

#include "gpu/columns.cuh"

namespace rg::RG_GPU {

/// scale = gamma / sigma with sigma^2 = variance + epsilon, and shift = beta - mean * scale. With the sums of dz x^ and
/// dz over `count` values of a channel, also the coefficients of the gradient past it:
/// dx = gamma / sigma * (dz - sum(dz) / count - x^ * sum(dz x^) / count) = scale dz + b x + d.
class Norm {
public:
    Norm(const Tensor& stats, const Tensor& gamma, const Tensor& beta, float epsilon, const Tensor& sums = {},
         double count = 0);
    const float* scale() const { return coefficients_; }
    const float* shift() const { return coefficients_ + c_; }
    int channels() const { return c_; }
    /// What reads x through it.
    template <class T>
    Normalised<T> read(const Tensor& x, bool relu) const {
        return {pointer<T>(x), scale(), shift(), relu};
    }
    /// What makes the gradient at x from that behind it. Precondition: the sums were given.
    template <class T>
    NormGradient<T> gradient(const Tensor& dz, const Tensor& x, bool relu) const {
        return {pointer<T>(dz), pointer<T>(x), scale(), shift(), shift() + c_, shift() + 2 * c_, relu};
    }

private:
    int c_;
    Scratch<float> coefficients_; // [c] each: scale, shift; b, d
};

/// What a value of a gradient adds to its channel's sums: g (x - mean) and g, where g is dy, or 0 where ReLU had cut
/// off.
template <class T>
struct NormTerms {
    const T* x;
    const float *scale, *shift, *mean;
    bool relu;
    __device__ __forceinline__ void add(float dy, size_t at, int c, TwoSums& sum) const {
        add_of(dy, load(x + at), c, sum);
    }
    __device__ __forceinline__ void add_of(float dy, float value, int c, TwoSums& sum) const {
        if (relu && value * scale[c] + shift[c] <= 0) return;
        sum.first += dy * (value - mean[c]);
        sum.second += dy;
    }
};
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

/// dgamma = sum of g x^ and dbeta = sum of g: the terms are added up by who makes dy, or by pass() from memory.
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
    void pass() const; // of norm.cu

private:
    const Norm& norm_;
    Tensor dy_, x_;
    const float* mean_;
    bool relu_;
    FinishNormSums finish_;
};

/// Of conv.cu, for conv_grad.cu: dx from a dy that is made on the way in, plus residual if defined; sums: those of
/// dx that are wanted, or null. a: stride and pad.
template <class T>
void data_gradient(const NormGradient<T>& dy, const Shape& dy_shape, const Tensor& w, const Attrs& a,
                   const Tensor& residual, const Tensor& dx, const NormSums* sums);

/// Of pool.cu, for conv.cu: the largest of each window x window pixels of x [n h w c], windows side by side.
template <class T>
void max_pool(const T* x, const Shape& x_shape, int window, T* y);

} // namespace rg::RG_GPU
