// Layer norm, row by row. A typical row stays in the first-level cache, so each further pass over it costs little.
#include "core/cpu/simd.h"

#include "core/cpu/kernels.h"

namespace rg::cpu::RG_ISA {

namespace {

/// The mean and the variance of a row, by the corrected two-pass algorithm of Chan, Golub and LeVeque (1983). The sum
/// of the deviations from the rounded mean corrects both.
template <class T>
class Row {
public:
    Row(const T* x, int64_t c, float epsilon) : x_(x) {
        Vec sum{};
        each_vector(c, [&](int64_t i, int lanes) { sum += load_first(x + i, lanes); });
        const float mean = sum_of(sum) / float(c);
        set_mean(mean);
        Vec rest{}, squares{};
        each_vector(c, [&](int64_t i, int lanes) {
            const Vec d = deviation(i, lanes);
            rest += d;
            squares += d * d;
        });
        const float error = sum_of(rest) / float(c), variance = sum_of(squares) / float(c) - error * error;
        set_mean(mean + error);
        scale_ = splat(1 / __builtin_sqrtf((variance < 0 ? 0 : variance) + epsilon));
    }
    /// Returns (x - mean) / sqrt(variance + epsilon) of the vector at index i: `lanes` values, followed by zeros.
    Vec hat(int64_t i, int lanes) const { return deviation(i, lanes) * scale_; }
    Vec scale() const { return scale_; }

private:
    Vec deviation(int64_t i, int lanes) const { return load_first(x_ + i, lanes) - load_first(mean_, lanes); }
    void set_mean(float mean) { store(mean_, splat(mean)); }

    const T* x_;
    float mean_[kWidth];
    Vec scale_;
};

template <class T>
void forward(const T* x, T* y, int64_t rows, int64_t c, const float* gamma, const float* beta, float epsilon) {
    for (; rows > 0; --rows, x += c, y += c) {
        const Row<T> row(x, c, epsilon);
        each_vector(c, [&](int64_t i, int lanes) {
            store_first(y + i, row.hat(i, lanes) * load_first(gamma + i, lanes) + load_first(beta + i, lanes), lanes);
        });
    }
}

// ref::layer_norm_grad() in core/ops/norm.cpp contains the formulas.
template <class T>
void backward(const T* dy, const T* x, T* dx, int64_t rows, int64_t c, const float* gamma, float epsilon, float* dgamma,
              float* dbeta) {
    for (; rows > 0; --rows, dy += c, x += c, dx += c) {
        const Row<T> row(x, c, epsilon);
        Vec g_sum{}, product_sum{};
        each_vector(c, [&](int64_t i, int lanes) {
            const Vec gradient = load_first(dy + i, lanes), hat = row.hat(i, lanes), product = gradient * hat;
            store_first(dgamma + i, load_first(dgamma + i, lanes) + product, lanes);
            store_first(dbeta + i, load_first(dbeta + i, lanes) + gradient, lanes);
            g_sum += gradient * load_first(gamma + i, lanes);
            product_sum += product * load_first(gamma + i, lanes);
        });
        const Vec g_mean = splat(sum_of(g_sum) / float(c)), product_mean = splat(sum_of(product_sum) / float(c));
        each_vector(c, [&](int64_t i, int lanes) {
            const Vec g = load_first(dy + i, lanes) * load_first(gamma + i, lanes);
            store_first(dx + i, row.scale() * (g - g_mean - row.hat(i, lanes) * product_mean), lanes);
        });
    }
}

} // namespace

extern const NormKernels kNorm;
const NormKernels kNorm{{forward<float>, backward<float>}, {forward<uint16_t>, backward<uint16_t>}};

} // namespace rg::cpu::RG_ISA
