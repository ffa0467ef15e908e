// Batch norm with given statistics, as an affine map per channel. The ops of batch norm use this code, and so do the
// ops that normalise an operand or their result (conv.cpp, conv_grad.cpp, pool.cpp, elements.cpp). The forward pass and
// the backward pass evaluate the same expression before ReLU, so they agree on which values ReLU sets to zero.
#pragma once

#include "core/cpu/channels.h"
#include "core/ops/norm.h"

#include <cmath>
#include <optional>

namespace rg::cpu {

struct AffineNorm {
    explicit AffineNorm(const BatchNormTensors& norm)
        : c(norm.gamma.numel()),
          period(period_of(c)),
          mean(norm.stats.data<float>()),
          activation(norm.options.activation),
          var_(mean + c),
          gamma_(norm.gamma.data<float>()),
          epsilon_(norm.options.epsilon),
          scale(c, [&](int64_t i) { return float(slope(i)); }),
          shift(c, [&](int64_t i) { return float(norm.beta.data<float>()[i] - mean[i] * slope(i)); }) {}

    double inv_std(int64_t i) const { return 1 / std::sqrt(double(var_[i]) + double(epsilon_)); }
    double slope(int64_t i) const { return gamma_[i] * inv_std(i); }

    /// Computes y, the activation of x * scale + shift, for `count` values, the first of channel 0.
    template <class T>
    void apply(const T* x, T* y, int64_t count, bool past_cache = false) const {
        kernels<T>().affine(x, y, count, period, scale, shift, activation, past_cache);
    }

    int64_t c, period;
    const float* mean;
    Activation activation;

private:
    const float *var_, *gamma_;
    float epsilon_;

public:
    PerChannel scale, shift;
};

/// The batch norm of an operand or of a result, if there is one.
struct OptionalNorm : std::optional<AffineNorm> {
    explicit OptionalNorm(const BatchNormTensors& norm) {
        if (norm) emplace(norm);
    }
};

/// Computes the gradient of AffineNorm: dx = gamma / sigma * (g - sum(g) / count - x^ * sum(g x^) / count), in the form
/// g * norm.scale + x * b + d. Here g is dy times the derivative of the activation. sigma is sqrt(variance + epsilon),
/// and x^ is (x - mean) / sigma. See ref::norm_grad() in core/ops/norm.cpp.
struct NormGrad {
    /// `sums` [2 c] holds the sums of g x^ (row 0) and of g (row 1). `count` is the number of values per channel.
    NormGrad(const AffineNorm& norm, const Tensor& sums, double count)
        : norm(norm), b(norm.c, [&](int64_t i) { return float(factor(sums, count, i)); }), d(norm.c, [&](int64_t i) {
              return float(-norm.slope(i) * sums.data<float>()[norm.c + i] / count -
                           factor(sums, count, i) * norm.mean[i]);
          }) {}

    template <class T>
    void apply(const T* dy, const T* x, T* dx, int64_t values, bool past_cache = false) const {
        kernels<T>().norm_grad(dy, x, dx, values, norm.period, norm.scale, norm.shift, norm.scale, b, d,
                               norm.activation, past_cache);
    }

    const AffineNorm& norm;
    PerChannel b, d;

private:
    double factor(const Tensor& sums, double count, int64_t i) const {
        return -norm.slope(i) * norm.inv_std(i) * sums.data<float>()[i] / count;
    }
};

/// Sums the gradients dgamma and dbeta of an AffineNorm image by image. Call add() once for each image, then finish().
/// Threads may call add() for different images at the same time; the result does not depend on the number of threads.
class NormSums {
public:
    NormSums(const AffineNorm& norm, int64_t images)
        : norm_(norm),
          images_(images),
          mean_(norm.c, [&](int64_t i) { return norm.mean[i]; }),
          parts_(images * 2 * norm.c) {}

    template <class T>
    void add(int64_t image, const T* dy, const T* x, int64_t values) {
        const Scratch<float> sums(2 * norm_.period);
        float *const products = sums.zeroed(), *const gradients = products + norm_.period;
        kernels<T>().norm_sums(dy, x, values, norm_.period, norm_.scale, norm_.shift, mean_, norm_.activation, products,
                               gradients);
        double* const part = parts_ + image * 2 * norm_.c;
        std::fill_n(part, 2 * norm_.c, 0.0);
        for (int64_t i = 0; i < norm_.period; i += norm_.c)
            for (int64_t c = 0; c < norm_.c; ++c) part[c] += products[i + c], part[norm_.c + c] += gradients[i + c];
    }

    void finish(const Tensor& dgamma, const Tensor& dbeta) const {
        const Scratch<double> sums(2 * norm_.c);
        sums.zeroed();
        for (int64_t n = 0; n < images_; ++n)
            for (int64_t i = 0; i < 2 * norm_.c; ++i) sums[i] += parts_[n * 2 * norm_.c + i];
        for (int64_t c = 0; c < norm_.c; ++c) {
            dgamma.data<float>()[c] = float(sums[c] * norm_.inv_std(c));
            dbeta.data<float>()[c] = float(sums[norm_.c + c]);
        }
    }

private:
    const AffineNorm& norm_;
    int64_t images_;
    PerChannel mean_;
    Scratch<double> parts_; // per image: [2 c], the sums of g * (x - mean), then those of g (see NormGrad)
};

/// Returns the number of values in an image of t, whose axes are images, rows, columns and channels.
inline int64_t image_values(const Tensor& t) { return t.extent(1) * t.extent(2) * t.extent(3); }

/// Calls f(zero, image, index of its first value) for all images of t, in at most 64 parallel tasks; for none if they
/// have no values. `zero` has the type that t is stored as.
template <class F>
void each_stored_image(const Tensor& t, F f) {
    const int64_t values = image_values(t), images = t.extent(0);
    const int64_t tasks = values > 0 ? std::min<int64_t>(images, 64) : 0;
    with_stored(t, [&](auto zero) {
        parallel(tasks, [&](int64_t task) {
            for (int64_t n = images * task / tasks; n < images * (task + 1) / tasks; ++n) f(zero, n, n * values);
        });
    });
}

/// Returns true if the result of an element-wise op has 4 MiB or more per thread. It is then too large to stay in the
/// caches until it is read again. The chunks of a prediction (core/chunks.h) are smaller. Call this outside of the
/// tasks: the threads of the pool know only themselves.
inline bool past_cache(const Tensor& t) { return t.bytes() >= (int64_t{4} << 20) * thread_count(); }

} // namespace rg::cpu
