// The ops of softmax and losses: their rows in the op table (core/op.h) and their reference implementations.
#include "core/ops/loss.h"

#include "core/ops/loss_targets.h"
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

void backward_softmax(Backward& b) {
    b.give(SoftmaxOp::x, run(op::softmax_grad, {b.dy(), b.out(0)}, {}, {b.into(SoftmaxOp::x)})[0]);
}

void backward_cross_entropy(Backward& b) {
    using O = CrossEntropyOp;
    b.give(O::logits, run(op::cross_entropy_grad,
                          {b.out(O::probabilities), b.in(O::labels), b.in(O::weights), b.in(O::sample_weights), b.dy()},
                          CrossEntropyGradOp{b.attrs().as<O>().smoothing}, {b.into(O::logits)})[0]);
}

void backward_binary_cross_entropy(Backward& b) {
    using O = BinaryCrossEntropyOp;
    b.give(O::logits, run(op::binary_cross_entropy_grad, {b.in(O::logits), b.in(O::targets), b.dy()}, {},
                          {b.into(O::logits)})[0]);
}

void backward_mse_loss(Backward& b) {
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

RG_ROW(softmax, .inputs = kSoftmax, .backward = backward_softmax, .saves = saves_out(0));
RG_ROW(softmax_grad, .inputs = kSoftmaxGrad);
RG_ROW(cross_entropy, .inputs = kCrossEntropy, .outputs = 3, .backward = backward_cross_entropy,
       .saves = saves_in(CrossEntropyOp::labels) | saves_in(CrossEntropyOp::weights) |
                saves_in(CrossEntropyOp::sample_weights) | saves_out(CrossEntropyOp::probabilities),
       .check = check_labels);
RG_ROW(cross_entropy_grad, .inputs = kCrossEntropyGrad, .may_be = {1 << CrossEntropyGradOp::probabilities});
RG_ROW(binary_cross_entropy, .inputs = kBinaryCrossEntropy, .backward = backward_binary_cross_entropy,
       .saves = saves_in(BinaryCrossEntropyOp::logits) | saves_in(BinaryCrossEntropyOp::targets),
       .check = check_targets);
RG_ROW(binary_cross_entropy_grad, .inputs = kBinaryCrossEntropyGrad,
       .may_be = {1 << BinaryCrossEntropyGradOp::logits | 1 << BinaryCrossEntropyGradOp::targets});
RG_ROW(mse_loss, .inputs = kMseLoss, .backward = backward_mse_loss,
       .saves = saves_in(MseLossOp::prediction) | saves_in(MseLossOp::target));
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

/// Returns the softmax of each row of k values. Subtracts the maximum first, so that exp() does not overflow.
Values softmax_rows(Values x, size_t k) {
    for (size_t row = 0; row + k <= x.size() && k; row += k) {
        const double largest = *std::max_element(&x[row], &x[row] + k);
        double sum = 0;
        for (size_t j = row; j < row + k; ++j) sum += x[j] = std::exp(x[j] - largest);
        for (size_t j = row; j < row + k; ++j) x[j] /= sum;
    }
    return x;
}

Tensor wide(const Tensor& t) { return t.defined() ? t.to(DType::f64) : t; }

/// Returns the gradient of the cross-entropy with respect to the logits, from the probabilities p [n k].
Values cross_entropy_gradient(Values p, const Targets<double>& targets, double dloss) {
    const double scale = dloss / targets.samples();
    for (size_t i = 0; i < p.size(); ++i) {
        const int64_t n = int64_t(i) / targets.k, j = int64_t(i) % targets.k;
        p[i] = scale * (p[i] * targets.sum(n) - targets.of(n, j));
    }
    return p;
}

} // namespace

void softmax(const Call& call) {
    const Tensor& x = call.in[SoftmaxOp::x];
    write(call.out[0], softmax_rows(read(x), size_t(x.extent(1))));
}

void softmax_grad(const Call& call) {
    const Values dy = read(call.in[SoftmaxGradOp::dy]), y = read(call.in[SoftmaxGradOp::y]);
    const size_t k = size_t(call.in[SoftmaxGradOp::y].extent(1));
    Values dx(y.size());
    for (size_t row = 0; row < y.size(); row += k) {
        double dot = 0;
        for (size_t j = row; j < row + k; ++j) dot += dy[j] * y[j];
        for (size_t j = row; j < row + k; ++j) dx[j] = y[j] * (dy[j] - dot);
    }
    write(call.out[0], dx);
}

void cross_entropy(const Call& call) {
    using O = CrossEntropyOp;
    const Values x = read(call.in[O::logits]);
    const size_t k = size_t(call.in[O::logits].extent(1));
    const Targets<double> targets(call.in[O::labels], int64_t(k), call.attrs.as<O>().smoothing,
                                  wide(call.in[O::weights]), wide(call.in[O::sample_weights]));
    const bool empty = targets.labels.empty();
    double loss = 0;
    for (size_t n = 0; n < targets.labels.size(); ++n) {
        const double largest = *std::max_element(&x[n * k], &x[n * k] + k);
        double sum = 0;
        for (size_t j = 0; j < k; ++j) sum += std::exp(x[n * k + j] - largest);
        for (size_t j = 0; j < k; ++j)
            loss -= weighted(targets.of(int64_t(n), int64_t(j)), x[n * k + j] - largest - std::log(sum));
    }
    write(call.out[O::loss], {empty ? 0 : loss / targets.samples()});
    const Values p = softmax_rows(x, k);
    if (call.in[O::dloss].defined())
        write(call.out[O::dlogits], cross_entropy_gradient(p, targets, read(call.in[O::dloss])[0]));
    else
        write(call.out[O::probabilities], p);
}

void cross_entropy_grad(const Call& call) {
    using O = CrossEntropyGradOp;
    const Tensor& p = call.in[O::probabilities];
    const Targets<double> targets(call.in[O::labels], p.extent(1), call.attrs.as<O>().smoothing,
                                  wide(call.in[O::weights]), wide(call.in[O::sample_weights]));
    write(call.out[0], cross_entropy_gradient(read(p), targets, read(call.in[O::dloss])[0]));
}

void binary_cross_entropy(const Call& call) {
    const Values x = read(call.in[BinaryCrossEntropyOp::logits]), t = read(call.in[BinaryCrossEntropyOp::targets]);
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i)
        sum += weighted(x[i] > 0 ? 1 - t[i] : t[i], std::abs(x[i])) + std::log1p(std::exp(-std::abs(x[i])));
    write(call.out[0], {x.empty() ? 0 : sum / double(x.size())});
}

void binary_cross_entropy_grad(const Call& call) {
    using O = BinaryCrossEntropyGradOp;
    Values x = read(call.in[O::logits]);
    const Values t = read(call.in[O::targets]);
    const double scale = read(call.in[O::dloss])[0] / double(x.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] = scale * (logistic(x[i]) - t[i]);
    write(call.out[0], x);
}

void mse_loss(const Call& call) {
    const Values a = read(call.in[MseLossOp::prediction]), b = read(call.in[MseLossOp::target]);
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
    write(call.out[0], {a.empty() ? 0 : sum / double(a.size())});
}

void mse_loss_grad(const Call& call) {
    Values a = read(call.in[MseLossGradOp::prediction]);
    const Values b = read(call.in[MseLossGradOp::target]);
    const double scale = 2 * read(call.in[MseLossGradOp::dloss])[0] / double(a.size());
    for (size_t i = 0; i < a.size(); ++i) a[i] = scale * (a[i] - b[i]);
    write(call.out[0], a);
}

} // namespace ref

} // namespace rg
