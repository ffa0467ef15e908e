// Softmax and the losses, for batches of a few hundred rows of ten values. They use the formulas of reference.cpp in
// double, in one thread. That takes a thousandth of a training step, and allocates no memory.
#include "core/cpu/scratch.h"
#include "core/kernels.h"

#include <algorithm>
#include <cmath>

namespace rg::cpu {

namespace {

/// Writes the softmax of a row of k scores to p. Returns the logarithm of the sum of their exponentials.
double softmax_row(const float* x, int64_t k, float* p) {
    const double largest = *std::max_element(x, x + k);
    const Scratch<double> e(k);
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) sum += e[j] = std::exp(x[j] - largest);
    for (int64_t j = 0; j < k; ++j) p[j] = float(e[j] / sum);
    return largest + std::log(sum);
}

/// Returns the target probability of class j. The label gets 1 - smoothing; all k classes share `smoothing` equally.
double target(int64_t j, int32_t label, float smoothing, int64_t k) {
    return (j == label ? 1 - double(smoothing) : 0) + double(smoothing) / double(k);
}

} // namespace

void softmax(const Call& call) {
    const int64_t n = call.in[0].extent(0), k = call.in[0].extent(1);
    for (int64_t i = 0; i < n; ++i) softmax_row(call.in[0].data<float>() + i * k, k, call.out[0].data<float>() + i * k);
}

void softmax_grad(const Call& call) {
    const int64_t n = call.in[1].extent(0), k = call.in[1].extent(1);
    for (int64_t i = 0; i < n; ++i) {
        const float *dy = call.in[0].data<float>() + i * k, *y = call.in[1].data<float>() + i * k;
        double dot = 0;
        for (int64_t j = 0; j < k; ++j) dot += double(dy[j]) * y[j];
        for (int64_t j = 0; j < k; ++j) call.out[0].data<float>()[i * k + j] = float(y[j] * (dy[j] - dot));
    }
}

void cross_entropy(const Call& call) {
    const int64_t n = call.in[0].extent(0), k = call.in[0].extent(1);
    const int32_t* labels = call.in[1].data<int32_t>();
    double loss = 0;
    for (int64_t i = 0; i < n; ++i) {
        const float* x = call.in[0].data<float>() + i * k;
        const double log_sum = softmax_row(x, k, call.out[1].data<float>() + i * k);
        for (int64_t j = 0; j < k; ++j) loss -= target(j, labels[i], call.attrs.rate, k) * (x[j] - log_sum);
    }
    call.out[0].data<float>()[0] = n ? float(loss / double(n)) : 0;
}

void cross_entropy_grad(const Call& call) {
    const int64_t n = call.in[0].extent(0), k = call.in[0].extent(1);
    const double scale = double(call.in[2].data<float>()[0]) / double(n);
    for (int64_t i = 0; i < n * k; ++i) {
        const double t = target(i % k, call.in[1].data<int32_t>()[i / k], call.attrs.rate, k);
        call.out[0].data<float>()[i] = float(scale * (call.in[0].data<float>()[i] - t));
    }
}

void cross_entropy_with_grad(const Call& call) {
    cross_entropy({call.attrs, call.in.first(2), call.out});
    const Tensor in[] = {call.out[1], call.in[1], call.in[2]}; // out[1] holds the probabilities, then the gradient
    cross_entropy_grad({call.attrs, in, call.out.subspan(1)});
}

void mse_loss(const Call& call) {
    const int64_t n = call.in[0].numel();
    const float *a = call.in[0].data<float>(), *b = call.in[1].data<float>();
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
    call.out[0].data<float>()[0] = n ? float(sum / double(n)) : 0;
}

void mse_loss_grad(const Call& call) {
    const int64_t n = call.in[0].numel();
    const double scale = 2 * double(call.in[2].data<float>()[0]) / double(n);
    for (int64_t i = 0; i < n; ++i)
        call.out[0].data<float>()[i] =
            float(scale * (double(call.in[0].data<float>()[i]) - call.in[1].data<float>()[i]));
}

} // namespace rg::cpu
