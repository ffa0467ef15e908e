// The ops of softmax and losses: their rows in the op table (core/op.h) and their implementations, the same for both
// backends.
#include "core/ops/loss.h"

#include "core/cpu/scratch.h"
#include "core/ops/reference.h"
#include "core/ops/rules.h"

namespace rg {

RG_LOSS_OPS(RG_DECLARE_KERNELS)

namespace {

OutputSpecs infer_softmax(In in, const Attrs&) {
    expect_rank("softmax", "x", in[SoftmaxOp::x], 2);
    RG_CHECK(in[SoftmaxOp::x].extent(1) > 0, "softmax: expected x with at least one column, got ",
             in[SoftmaxOp::x].shape().str());
    return like(in[SoftmaxOp::x]);
}

OutputSpecs infer_softmax_grad(In in, const Attrs&) {
    expect_rank("softmax_grad", "y", in[SoftmaxGradOp::y], 2);
    expect_shape("softmax_grad", "dy", in[SoftmaxGradOp::dy], in[SoftmaxGradOp::y].shape());
    return like(in[SoftmaxGradOp::y]);
}

void expect_labels(const char* op, const Tensor& scores, const Tensor& labels, const Tensor& weights,
                   const Tensor& sample_weights, float smoothing) {
    expect_rank(op, "logits", scores, 2);
    expect_shape(op, "labels", labels, {scores.extent(0)});
    if (weights.defined()) expect_shape(op, "weights", weights, {scores.extent(1)});
    if (sample_weights.defined()) expect_shape(op, "sample_weights", sample_weights, {scores.extent(0)});
    RG_CHECK(smoothing >= 0 && smoothing < 1, op, ": label smoothing lies in [0, 1), got ", smoothing);
}

void expect_one_element(const char* op, const Tensor& dloss) {
    RG_CHECK(dloss.numel() == 1, op, ": the gradient of the loss needs one element, got ", dloss.shape().str());
}

OutputSpecs infer_cross_entropy(In in, const Attrs& attrs) {
    using O = CrossEntropyOp;
    const Tensor& logits = in[O::logits];
    expect_labels("cross_entropy", logits, in[O::labels], in[O::weights], in[O::sample_weights],
                  attrs.as<O>().smoothing);
    const bool with_gradient = in[O::dloss].defined();
    if (with_gradient) expect_one_element("cross_entropy", in[O::dloss]);
    const Shape none{0};
    return {{{{}, logits.dtype()},
             {with_gradient ? none : logits.shape(), logits.dtype()},
             {with_gradient ? logits.shape() : none, logits.dtype()}}};
}

OutputSpecs infer_cross_entropy_grad(In in, const Attrs& attrs) {
    using O = CrossEntropyGradOp;
    expect_labels("cross_entropy_grad", in[O::probabilities], in[O::labels], in[O::weights], in[O::sample_weights],
                  attrs.as<O>().smoothing);
    expect_one_element("cross_entropy_grad", in[O::dloss]);
    return like(in[O::probabilities]);
}

OutputSpecs infer_binary_cross_entropy(In in, const Attrs&) {
    using O = BinaryCrossEntropyOp;
    expect_shape("binary_cross_entropy", "targets", in[O::targets], in[O::logits].shape());
    return {{{{}, in[O::logits].dtype()}}};
}

OutputSpecs infer_binary_cross_entropy_grad(In in, const Attrs&) {
    using O = BinaryCrossEntropyGradOp;
    expect_shape("binary_cross_entropy_grad", "targets", in[O::targets], in[O::logits].shape());
    expect_one_element("binary_cross_entropy_grad", in[O::dloss]);
    return like(in[O::logits]);
}

OutputSpecs infer_mse_loss(In in, const Attrs&) {
    expect_shape("mse_loss", "target", in[MseLossOp::target], in[MseLossOp::prediction].shape());
    return {{{{}, in[MseLossOp::prediction].dtype()}}};
}

OutputSpecs infer_mse_loss_grad(In in, const Attrs&) {
    using O = MseLossGradOp;
    expect_shape("mse_loss_grad", "target", in[O::target], in[O::prediction].shape());
    expect_one_element("mse_loss_grad", in[O::dloss]);
    return like(in[O::prediction]);
}

void backward_softmax(BackwardContext& b) {
    b.give(SoftmaxOp::x, run(op::softmax_grad, {b.dy(), b.out(0)}, {}, {b.into(SoftmaxOp::x)})[0]);
}

void backward_cross_entropy(BackwardContext& b) {
    using O = CrossEntropyOp;
    b.give(O::logits, run(op::cross_entropy_grad,
                          {b.out(O::probabilities), b.in(O::labels), b.in(O::weights), b.in(O::sample_weights), b.dy()},
                          CrossEntropyGradOp{b.attrs().as<O>().smoothing}, {b.into(O::logits)})[0]);
}

void backward_binary_cross_entropy(BackwardContext& b) {
    using O = BinaryCrossEntropyOp;
    b.give(O::logits,
           run(op::binary_cross_entropy_grad, {b.in(O::logits), b.in(O::targets), b.dy()}, {}, {b.into(O::logits)})[0]);
}

void backward_mse_loss(BackwardContext& b) {
    using O = MseLossOp;
    for (const auto& [i, other] : {std::pair{O::prediction, O::target}, {O::target, O::prediction}})
        if (b.wants(i)) b.give(i, run(op::mse_loss_grad, {b.in(i), b.in(other), b.dy()}, {}, {b.into(i)})[0]);
}

void check_labels(const Call& call) {
    check_below(call.in[CrossEntropyOp::logits].extent(1), call.in[CrossEntropyOp::labels], "cross_entropy: label");
}

void check_targets(const Call& call) {
    const Tensor& targets = call.in[BinaryCrossEntropyOp::targets];
    if (targets.device()) return;
    const Tensor wide = targets.to(DType::f64);
    const auto all = wide.span<double>();
    for (size_t i = 0; i < all.size(); ++i)
        RG_CHECK(all[i] >= 0 && all[i] <= 1, "binary_cross_entropy: target ", all[i], " of element ", i,
                 " lies outside [0, 1]");
}

constexpr Argument kSoftmax[] = {{"x", Type::precise}};
constexpr Argument kSoftmaxGrad[] = {{"dy", Type::precise}, {"y", Type::precise}};
constexpr Argument kWeights = {"weights", Type::precise, Presence::optional},
                   kSampleWeights = {"sample_weights", Type::precise, Presence::optional};
constexpr Argument kCrossEntropy[] = {
    {"logits", Type::precise}, {"labels", Type::i32}, kWeights, kSampleWeights, fused("dloss")};
constexpr Argument kCrossEntropyGrad[] = {
    {"probabilities", Type::precise}, {"labels", Type::i32}, kWeights, kSampleWeights, {"dloss", Type::precise}};
constexpr Argument kBinaryCrossEntropy[] = {{"logits", Type::precise}, {"targets", Type::precise}};
constexpr Argument kBinaryCrossEntropyGrad[] = {
    {"logits", Type::precise}, {"targets", Type::precise}, {"dloss", Type::precise}};
constexpr Argument kMseLoss[] = {{"prediction", Type::precise}, {"target", Type::precise}};
constexpr Argument kMseLossGrad[] = {
    {"prediction", Type::precise}, {"target", Type::precise}, {"dloss", Type::precise}};

} // namespace

RG_ROW(softmax, .inputs = kSoftmax, .images = input_bit(SoftmaxOp::x) | output_bit(0), .backward = backward_softmax,
       .saves = output_bit(0));
RG_ROW(softmax_grad, .inputs = kSoftmaxGrad);
RG_ROW(cross_entropy, .inputs = kCrossEntropy, .outputs = 3, .backward = backward_cross_entropy,
       .saves = input_bit(CrossEntropyOp::labels) | input_bit(CrossEntropyOp::weights) |
                input_bit(CrossEntropyOp::sample_weights) | output_bit(CrossEntropyOp::probabilities),
       .check = check_labels);
RG_ROW(cross_entropy_grad, .inputs = kCrossEntropyGrad, .may_be = {1 << CrossEntropyGradOp::probabilities});
RG_ROW(binary_cross_entropy, .inputs = kBinaryCrossEntropy, .backward = backward_binary_cross_entropy,
       .saves = input_bit(BinaryCrossEntropyOp::logits) | input_bit(BinaryCrossEntropyOp::targets),
       .check = check_targets);
RG_ROW(binary_cross_entropy_grad, .inputs = kBinaryCrossEntropyGrad,
       .may_be = {1 << BinaryCrossEntropyGradOp::logits | 1 << BinaryCrossEntropyGradOp::targets});
RG_ROW(mse_loss, .inputs = kMseLoss, .backward = backward_mse_loss,
       .saves = input_bit(MseLossOp::prediction) | input_bit(MseLossOp::target));
RG_ROW(mse_loss_grad, .inputs = kMseLossGrad, .may_be = {1 << MseLossGradOp::prediction | 1 << MseLossGradOp::target});

// ---- functions -----------------------------------------------------------------------------------------------------

Tensor softmax(const Tensor& x) { return run(op::softmax, {x})[0]; }

Tensor cross_entropy(const Tensor& logits, const Tensor& labels, float smoothing, const Tensor& weights,
                     const Tensor& sample_weights) {
    return run(op::cross_entropy, {logits, labels, weights, sample_weights},
               CrossEntropyOp{smoothing})[CrossEntropyOp::loss];
}

Tensor binary_cross_entropy(const Tensor& logits, const Tensor& targets) {
    return run(op::binary_cross_entropy, {logits, targets})[0];
}

Tensor mse_loss(const Tensor& prediction, const Tensor& target) { return run(op::mse_loss, {prediction, target})[0]; }

// ---- reference -----------------------------------------------------------------------------------------------------

namespace ref {

namespace {

/// Returns weight * value, and 0 for a weight of 0, whatever the value: a logit may be infinite.
double weighted(double weight, double value) { return weight == 0 ? 0 : weight * value; }

/// The targets of a mini-batch with k classes. Each class of a sample gets smoothing / k, and the label's class gets
/// 1 - smoothing in addition. Then each target is multiplied by the weight of its class, if `weights` is defined, and
/// by that of its sample. Weights are of type T.
template <class T>
struct Targets {
    Targets(const Tensor& labels_, int64_t k_, double smoothing_, const Tensor& weights_, const Tensor& sample_weights)
        : labels(labels_.span<int32_t>()),
          k(k_),
          smoothing(smoothing_),
          weights(weights_.defined() ? weights_.data<T>() : nullptr),
          of_samples(sample_weights.defined() ? sample_weights.data<T>() : nullptr) {
        for (int64_t j = 0; weights && j < k; ++j) all_weights += weights[j];
    }
    double weight(int64_t j) const { return weights ? weights[j] : 1; }
    double of_sample(int64_t n) const { return of_samples ? of_samples[n] : 1; }
    double of(int64_t n, int64_t j) const {
        return weight(j) * ((j == labels[size_t(n)] ? 1 - smoothing : 0) + smoothing / double(k)) * of_sample(n);
    }
    /// Returns the sum of the targets of sample n.
    double sum(int64_t n) const {
        const double of_classes =
            weights ? weight(labels[size_t(n)]) * (1 - smoothing) + smoothing / double(k) * all_weights : 1;
        return of_classes * of_sample(n);
    }
    /// Returns the divisor of the mean: the number of samples or, with class weights alone, the sum of those of all
    /// labels.
    double samples() const {
        if (of_samples) return double(labels.size());
        double total = 0;
        for (const int32_t label : labels) total += weight(label);
        return total;
    }

    std::span<const int32_t> labels;
    int64_t k;
    double smoothing;
    const T *weights, *of_samples;
    double all_weights = 0;
};

/// The logarithm of a sum of exp(x) is largest + log_sum. Their sum would round off log_sum.
struct LogSum {
    double largest, log_sum;
};

/// Writes the softmax of the k scores x to p. Subtracts the maximum first, so that exp() does not overflow.
template <class T>
LogSum softmax_row(const T* x, int64_t k, T* p) {
    const double largest = *std::max_element(x, x + k);
    const cpu::Scratch<double> e(k);
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) sum += e[j] = std::exp(x[j] - largest);
    for (int64_t j = 0; j < k; ++j) p[j] = T(e[j] / sum);
    return {largest, std::log(sum)};
}

/// Computes the gradient of the cross-entropy with respect to the logits, from the probabilities p [n k]. `dlogits` may
/// be p.
template <class T>
void cross_entropy_gradient(const T* p, const Targets<T>& targets, const Tensor& dloss, const Tensor& dlogits) {
    const double scale = double(*dloss.data<T>()) / targets.samples();
    for (int64_t i = 0; i < dlogits.numel(); ++i) {
        const int64_t n = i / targets.k;
        dlogits.data<T>()[i] = T(scale * (p[i] * targets.sum(n) - targets.of(n, i % targets.k)));
    }
}

} // namespace

void softmax(const Call& call) {
    const Tensor& x = call.in[SoftmaxOp::x];
    const int64_t k = x.extent(1);
    with_precise(x, [&]<class T>(T) {
        for (int64_t i = 0; i < x.numel(); i += k) softmax_row(x.data<T>() + i, k, call.out[0].data<T>() + i);
    });
}

void softmax_grad(const Call& call) {
    const int64_t k = call.out[0].extent(1);
    with_precise(call.out[0], [&]<class T>(T) {
        const T *dy = call.in[SoftmaxGradOp::dy].data<T>(), *y = call.in[SoftmaxGradOp::y].data<T>();
        T* const dx = call.out[0].data<T>();
        for (int64_t row = 0; row < call.out[0].numel(); row += k) {
            double dot = 0;
            for (int64_t j = row; j < row + k; ++j) dot += double(dy[j]) * y[j];
            for (int64_t j = row; j < row + k; ++j) dx[j] = T(y[j] * (dy[j] - dot));
        }
    });
}

void cross_entropy(const Call& call) {
    using O = CrossEntropyOp;
    const Tensor &logits = call.in[O::logits], &dloss = call.in[O::dloss];
    const Tensor& p = dloss.defined() ? call.out[O::dlogits] : call.out[O::probabilities];
    const int64_t n = logits.extent(0), k = logits.extent(1);
    with_precise(logits, [&]<class T>(T) {
        const Targets<T> targets(call.in[O::labels], k, call.attrs.as<O>().smoothing, call.in[O::weights],
                                 call.in[O::sample_weights]);
        double loss = 0;
        for (int64_t i = 0; i < n; ++i) {
            const T* const x = logits.data<T>() + i * k;
            const auto [largest, log_sum] = softmax_row(x, k, p.data<T>() + i * k);
            for (int64_t j = 0; j < k; ++j) loss -= weighted(targets.of(i, j), x[j] - largest - log_sum);
        }
        *call.out[O::loss].data<T>() = n ? T(loss / targets.samples()) : 0;
        if (dloss.defined()) cross_entropy_gradient(p.data<T>(), targets, dloss, p);
    });
}

void cross_entropy_grad(const Call& call) {
    using O = CrossEntropyGradOp;
    const Tensor& p = call.in[O::probabilities];
    with_precise(p, [&]<class T>(T) {
        const Targets<T> targets(call.in[O::labels], p.extent(1), call.attrs.as<O>().smoothing, call.in[O::weights],
                                 call.in[O::sample_weights]);
        cross_entropy_gradient(p.data<T>(), targets, call.in[O::dloss], call.out[0]);
    });
}

void binary_cross_entropy(const Call& call) {
    const Tensor &logits = call.in[BinaryCrossEntropyOp::logits], &targets = call.in[BinaryCrossEntropyOp::targets];
    with_precise(logits, [&]<class T>(T) {
        const int64_t n = logits.numel();
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) {
            const double x = logits.data<T>()[i], t = targets.data<T>()[i];
            sum += weighted(x > 0 ? 1 - t : t, std::abs(x)) + std::log1p(std::exp(-std::abs(x)));
        }
        *call.out[0].data<T>() = n ? T(sum / double(n)) : 0;
    });
}

void binary_cross_entropy_grad(const Call& call) {
    using O = BinaryCrossEntropyGradOp;
    with_precise(call.out[0], [&]<class T>(T) {
        const int64_t n = call.out[0].numel();
        const T *x = call.in[O::logits].data<T>(), *t = call.in[O::targets].data<T>();
        const double scale = double(*call.in[O::dloss].data<T>()) / double(n);
        for (int64_t i = 0; i < n; ++i) call.out[0].data<T>()[i] = T(scale * (logistic(x[i]) - t[i]));
    });
}

void mse_loss(const Call& call) {
    const Tensor &prediction = call.in[MseLossOp::prediction], &target = call.in[MseLossOp::target];
    with_precise(prediction, [&]<class T>(T) {
        const int64_t n = prediction.numel();
        const T *a = prediction.data<T>(), *b = target.data<T>();
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
        *call.out[0].data<T>() = n ? T(sum / double(n)) : 0;
    });
}

void mse_loss_grad(const Call& call) {
    using O = MseLossGradOp;
    with_precise(call.out[0], [&]<class T>(T) {
        const int64_t n = call.out[0].numel();
        const T *a = call.in[O::prediction].data<T>(), *b = call.in[O::target].data<T>();
        const double scale = 2 * double(*call.in[O::dloss].data<T>()) / double(n);
        for (int64_t i = 0; i < n; ++i) call.out[0].data<T>()[i] = T(scale * (double(a[i]) - b[i]));
    });
}

} // namespace ref

// A typical mini-batch has a few hundred rows of ten values, so the loops of the reference in one thread are fast
// enough. They allocate no memory except Scratch.
RG_LOSS_OPS(RG_RUN_REFERENCE)

} // namespace rg
