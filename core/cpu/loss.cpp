// Softmax and the losses, for batches of a few hundred rows of ten values. They use the formulas of core/ops/loss.cpp
// in double, in one thread. That takes a thousandth of a training step, and allocates no memory.
#include "ringgrad/core/cpu/scratch.h"
#include "ringgrad/core/ops/loss.h"

#include <algorithm>
#include <cmath>

namespace rg::cpu {

namespace {

/// Writes the softmax of a row of k scores to p. Returns the logarithm of the sum of the scores' exponentials.
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

/// Computes the gradient of cross-entropy from the probabilities. `dlogits` may be the same tensor as `probabilities`.
void cross_entropy_gradient(const Tensor& probabilities, const Tensor& labels, float smoothing, const Tensor& dloss,
                            const Tensor& dlogits) {
    const int64_t n = dlogits.extent(0), k = dlogits.extent(1);
    const double scale = double(dloss.data<float>()[0]) / double(n);
    for (int64_t i = 0; i < n * k; ++i) {
        const double t = target(i % k, labels.data<int32_t>()[i / k], smoothing, k);
        dlogits.data<float>()[i] = float(scale * (probabilities.data<float>()[i] - t));
    }
}

} // namespace

void softmax(const Call& call) {
    const Tensor& x = call.in[SoftmaxOp::x];
    const int64_t n = x.extent(0), k = x.extent(1);
    for (int64_t i = 0; i < n; ++i) softmax_row(x.data<float>() + i * k, k, call.out[0].data<float>() + i * k);
}

void softmax_grad(const Call& call) {
    const int64_t n = call.out[0].extent(0), k = call.out[0].extent(1);
    for (int64_t i = 0; i < n; ++i) {
        const float* const dy = call.in[SoftmaxGradOp::dy].data<float>() + i * k;
        const float* const y = call.in[SoftmaxGradOp::y].data<float>() + i * k;
        double dot = 0;
        for (int64_t j = 0; j < k; ++j) dot += double(dy[j]) * y[j];
        for (int64_t j = 0; j < k; ++j) call.out[0].data<float>()[i * k + j] = float(y[j] * (dy[j] - dot));
    }
}

void cross_entropy(const Call& call) {
    using O = CrossEntropyOp;
    const float smoothing = call.attrs.as<O>().smoothing;
    const Tensor &logits = call.in[O::logits], &labels = call.in[O::labels], &dloss = call.in[O::dloss];
    const Tensor& p = dloss.defined() ? call.out[O::dlogits] : call.out[O::probabilities];
    const int64_t n = logits.extent(0), k = logits.extent(1);
    double loss = 0;
    for (int64_t i = 0; i < n; ++i) {
        const float* x = logits.data<float>() + i * k;
        const double log_sum = softmax_row(x, k, p.data<float>() + i * k);
        for (int64_t j = 0; j < k; ++j) loss -= target(j, labels.data<int32_t>()[i], smoothing, k) * (x[j] - log_sum);
    }
    call.out[O::loss].data<float>()[0] = n ? float(loss / double(n)) : 0;
    if (dloss.defined()) cross_entropy_gradient(p, labels, smoothing, dloss, p);
}

void cross_entropy_grad(const Call& call) {
    using O = CrossEntropyGradOp;
    cross_entropy_gradient(call.in[O::probabilities], call.in[O::labels], call.attrs.as<O>().smoothing,
                           call.in[O::dloss], call.out[0]);
}

void mse_loss(const Call& call) {
    const Tensor &prediction = call.in[MseLossOp::prediction], &target = call.in[MseLossOp::target];
    const int64_t n = prediction.numel();
    const float *a = prediction.data<float>(), *b = target.data<float>();
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
    call.out[0].data<float>()[0] = n ? float(sum / double(n)) : 0;
}

void mse_loss_grad(const Call& call) {
    using O = MseLossGradOp;
    const int64_t n = call.in[O::prediction].numel();
    const float *a = call.in[O::prediction].data<float>(), *b = call.in[O::target].data<float>();
    const double scale = 2 * double(call.in[O::dloss].data<float>()[0]) / double(n);
    for (int64_t i = 0; i < n; ++i) call.out[0].data<float>()[i] = float(scale * (double(a[i]) - b[i]));
}

} // namespace rg::cpu
