// Batch norm's coefficients by channel, as the kernels that read activations take them (values.cuh).
#pragma once

#include "gpu/scratch.cuh"
#include "gpu/values.cuh"

namespace rg::RG_GPU {

/// scale = gamma / sqrt(variance + epsilon), shift = beta - mean * scale.
class Norm {
public:
    Norm(const Tensor& stats, const Tensor& gamma, const Tensor& beta, float epsilon);
    const float* scale() const { return coefficients_; }
    const float* shift() const { return coefficients_ + c_; }
    int channels() const { return c_; }
    /// What reads x through it.
    template <class T>
    Normalised<T> read(const Tensor& x, bool relu) const {
        return {pointer<T>(x), scale(), shift(), relu};
    }
    /// out = bias * scale + shift; bias null: shift.
    void fold_bias(const float* bias, float* out) const;

private:
    int c_;
    Scratch<float> coefficients_; // [2 c]
};

/// The coefficients of the gradient past batch norm, from the sums of dz and dz * x^ over `count` values of a channel:
/// dx = gamma / sigma * (dz - sum(dz) / count - x^ * sum(dz x^) / count) = a dz + b x + d.
class NormGrad {
public:
    NormGrad(const Tensor& stats, const Tensor& gamma, const Tensor& beta, const Tensor& sums, double count,
             float epsilon);
    template <class T>
    NormGradient<T> read(const Tensor& dz, const Tensor& y, bool relu) const {
        const float* const at = coefficients_ + 0;
        return {pointer<T>(dz),
                pointer<T>(y),
                norm_.scale(),
                norm_.shift(),
                at,
                at + norm_.channels(),
                at + 2 * norm_.channels(),
                relu};
    }

private:
    Norm norm_;
    Scratch<float> coefficients_; // [3 c]
};

/// Of conv.cu, for conv_grad.cu: dx from a dy that is made on the way in, plus residual if defined. a: stride and pad.
template <class T>
void data_gradient(const NormGradient<T>& dy, const Shape& dy_shape, const Tensor& w, const Attrs& a,
                   const Tensor& residual, const Tensor& dx);

/// Of pool.cu, for conv.cu: the largest of each window x window pixels of x [n h w c], windows side by side.
template <class T>
void max_pool(const T* x, const Shape& x_shape, int window, T* y);

/// Of norm.cu, for pool.cu and conv_grad.cu: the sums that batch norm's gradient needs; see batch_norm_sums.
void norm_sums(const Tensor& dy, const Tensor& x, const Tensor& stats, const Tensor& gamma, const Tensor& beta,
               bool relu, float epsilon, const Tensor& dgamma, const Tensor& dbeta);

} // namespace rg::RG_GPU
