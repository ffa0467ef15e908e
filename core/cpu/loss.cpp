// Softmax and the losses, with the formulas of core/ops/loss.cpp in double. A typical batch has a few hundred rows of
// ten values, so one thread suffices. The functions allocate no memory except Scratch.
#include "core/ops/loss.h"
#include "core/cpu/scratch.h"
#include "core/ops/loss_targets.h"

#include <algorithm>
#include <cmath>

namespace rg::cpu {

namespace {

/// The terms of log(sum of exp(x)) = largest + log_sum, for scores x. They are kept apart, since their sum would round
/// off digits of log_sum.
struct LogSum {
    double largest, log_sum;
};

/// Writes the softmax of the k scores x to p. Returns the terms of log(sum of exp(x)).
LogSum softmax_row(const float* x, int64_t k, float* p) {
    const double largest = *std::max_element(x, x + k);
    const Scratch<double> e(k);
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) sum += e[j] = std::exp(x[j] - largest);
    for (int64_t j = 0; j < k; ++j) p[j] = float(e[j] / sum);
    return {largest, std::log(sum)};
}

/// Computes the gradient of cross-entropy from the softmax. `dlogits` may be the same tensor as `probabilities`.
void cross_entropy_gradient(const Tensor& probabilities, const Targets<float>& targets, const Tensor& dloss,
                            const Tensor& dlogits) {
    const int64_t n = dlogits.extent(0), k = dlogits.extent(1);
    const double scale = double(dloss.data<float>()[0]) / targets.samples();
    const float* const p = probabilities.data<float>();
    for (int64_t i = 0; i < n; ++i) {
        const double sum = targets.sum(i);
        for (int64_t j = 0; j < k; ++j)
            dlogits.data<float>()[i * k + j] = float(scale * (p[i * k + j] * sum - targets.of(i, j)));
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
    const Tensor &logits = call.in[O::logits], &dloss = call.in[O::dloss];
    const Tensor& p = dloss.defined() ? call.out[O::dlogits] : call.out[O::probabilities];
    const int64_t n = logits.extent(0), k = logits.extent(1);
    const Targets<float> targets(call.in[O::labels], k, call.attrs.as<O>().smoothing, call.in[O::weights],
                                 call.in[O::sample_weights]);
    double loss = 0;
    for (int64_t i = 0; i < n; ++i) {
        const float* x = logits.data<float>() + i * k;
        const auto [largest, log_sum] = softmax_row(x, k, p.data<float>() + i * k);
        for (int64_t j = 0; j < k; ++j) loss -= weighted(targets.of(i, j), x[j] - largest - log_sum);
    }
    call.out[O::loss].data<float>()[0] = n ? float(loss / targets.samples()) : 0;
    if (dloss.defined()) cross_entropy_gradient(p, targets, dloss, p);
}

void cross_entropy_grad(const Call& call) {
    using O = CrossEntropyGradOp;
    const Tensor& p = call.in[O::probabilities];
    const Targets<float> targets(call.in[O::labels], p.extent(1), call.attrs.as<O>().smoothing, call.in[O::weights],
                                 call.in[O::sample_weights]);
    cross_entropy_gradient(p, targets, call.in[O::dloss], call.out[0]);
}

void binary_cross_entropy(const Call& call) {
    const Tensor &logits = call.in[BinaryCrossEntropyOp::logits], &targets = call.in[BinaryCrossEntropyOp::targets];
    const int64_t n = logits.numel();
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
        const double x = logits.data<float>()[i], t = targets.data<float>()[i];
        sum += weighted(x > 0 ? 1 - t : t, std::abs(x)) + std::log1p(std::exp(-std::abs(x)));
    }
    call.out[0].data<float>()[0] = n ? float(sum / double(n)) : 0;
}

void binary_cross_entropy_grad(const Call& call) {
    using O = BinaryCrossEntropyGradOp;
    const int64_t n = call.in[O::logits].numel();
    const float *x = call.in[O::logits].data<float>(), *t = call.in[O::targets].data<float>();
    const double scale = double(call.in[O::dloss].data<float>()[0]) / double(n);
    for (int64_t i = 0; i < n; ++i) {
        const double e = std::exp(-std::abs(double(x[i]))), p = (x[i] < 0 ? e : 1) / (1 + e);
        call.out[0].data<float>()[i] = float(scale * (p - t[i]));
    }
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
