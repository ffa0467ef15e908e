// Softmax and losses: the rows of the ops and their reference.
#include "ringgrad/core/ops/loss.h"

#include "ringgrad/core/ops/reference.h"
#include "ringgrad/core/ops/rules.h"

namespace rg {

RG_LOSS_OPS(RG_DECLARE_KERNELS)

namespace {

OutputSpecs infer_softmax(In in, const Attrs&) {
    expect_rank("softmax", "x", in[SoftmaxOp::x], 2);
    return like(in[SoftmaxOp::x]);
}

OutputSpecs infer_softmax_grad(In in, const Attrs&) {
    expect_rank("softmax_grad", "y", in[SoftmaxGradOp::y], 2);
    expect_shape("softmax_grad", "dy", in[SoftmaxGradOp::dy], in[SoftmaxGradOp::y].shape());
    return like(in[SoftmaxGradOp::y]);
}

void expect_labels(const char* op, const Tensor& scores, const Tensor& labels, float smoothing) {
    expect_rank(op, "logits", scores, 2);
    expect_shape(op, "labels", labels, {scores.extent(0)});
    RG_CHECK(smoothing >= 0 && smoothing < 1, op, ": label smoothing lies in [0, 1), got ", smoothing);
}

void expect_one_element(const char* op, const Tensor& dloss) {
    RG_CHECK(dloss.numel() == 1, op, ": the gradient of the loss needs one element, got ", dloss.shape().str());
}

OutputSpecs infer_cross_entropy(In in, const Attrs& attrs) {
    using O = CrossEntropyOp;
    const Tensor& logits = in[O::logits];
    expect_labels("cross_entropy", logits, in[O::labels], attrs.as<O>().smoothing);
    const bool with_gradient = in[O::dloss].defined();
    if (with_gradient) expect_one_element("cross_entropy", in[O::dloss]);
    const Shape none{0};
    return {{{{}, logits.dtype()},
             {with_gradient ? none : logits.shape(), logits.dtype()},
             {with_gradient ? logits.shape() : none, logits.dtype()}}};
}

OutputSpecs infer_cross_entropy_grad(In in, const Attrs& attrs) {
    using O = CrossEntropyGradOp;
    expect_labels("cross_entropy_grad", in[O::probabilities], in[O::labels], attrs.as<O>().smoothing);
    expect_one_element("cross_entropy_grad", in[O::dloss]);
    return like(in[O::probabilities]);
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
    b.give(O::logits, run(op::cross_entropy_grad, {b.out(O::probabilities), b.in(O::labels), b.dy()},
                          CrossEntropyGradOp{b.attrs().as<O>().smoothing}, {b.into(O::logits)})[0]);
}

void backward_mse_loss(Backward& b) {
    using O = MseLossOp;
    for (const auto& [i, other] : {std::pair{O::prediction, O::target}, {O::target, O::prediction}})
        if (b.wants(i)) b.give(i, run(op::mse_loss_grad, {b.in(i), b.in(other), b.dy()}, {}, {b.into(i)})[0]);
}

void check_labels(const Call& call) {
    check_below(call.in[CrossEntropyOp::logits].extent(1), call.in[CrossEntropyOp::labels], "cross_entropy: label");
}

constexpr Argument kSoftmax[] = {{"x", Type::precise}};
constexpr Argument kSoftmaxGrad[] = {{"dy", Type::precise}, {"y", Type::precise}};
constexpr Argument kCrossEntropy[] = {{"logits", Type::precise}, {"labels", Type::i32}, fused("dloss")};
constexpr Argument kCrossEntropyGrad[] = {
    {"probabilities", Type::precise}, {"labels", Type::i32}, {"dloss", Type::precise}};
constexpr Argument kMseLoss[] = {{"prediction", Type::precise}, {"target", Type::precise}};
constexpr Argument kMseLossGrad[] = {
    {"prediction", Type::precise}, {"target", Type::precise}, {"dloss", Type::precise}};

} // namespace

RG_ROW(softmax, .inputs = kSoftmax, .backward = backward_softmax, .saves = saves_out(0));
RG_ROW(softmax_grad, .inputs = kSoftmaxGrad);
RG_ROW(cross_entropy, .inputs = kCrossEntropy, .outputs = 3, .backward = backward_cross_entropy,
       .saves = saves_in(CrossEntropyOp::labels) | saves_out(CrossEntropyOp::probabilities), .check = check_labels);
RG_ROW(cross_entropy_grad, .inputs = kCrossEntropyGrad);
RG_ROW(mse_loss, .inputs = kMseLoss, .backward = backward_mse_loss,
       .saves = saves_in(MseLossOp::prediction) | saves_in(MseLossOp::target));
RG_ROW(mse_loss_grad, .inputs = kMseLossGrad);

// ---- functions -----------------------------------------------------------------------------------------------------

Tensor softmax(const Tensor& x) { return run(op::softmax, {x})[0]; }

Tensor cross_entropy(const Tensor& logits, const Tensor& labels, float smoothing) {
    return run(op::cross_entropy, {logits, labels}, CrossEntropyOp{smoothing})[CrossEntropyOp::loss];
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

/// Returns the target probability of class j. The label gets 1 - smoothing; all k classes share `smoothing` equally.
double target(size_t j, int32_t label, double smoothing, size_t k) {
    return (int32_t(j) == label ? 1 - smoothing : 0) + smoothing / double(k);
}

/// Returns the gradient of cross-entropy from the probabilities [n k].
Values cross_entropy_gradient(Values p, size_t k, std::span<const int32_t> labels, double smoothing, double dloss) {
    const double scale = dloss / double(labels.size());
    for (size_t i = 0; i < p.size(); ++i) p[i] = scale * (p[i] - target(i % k, labels[i / k], smoothing, k));
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
    const double smoothing = call.attrs.as<O>().smoothing;
    const Values x = read(call.in[O::logits]);
    const auto labels = call.in[O::labels].span<int32_t>();
    const size_t k = size_t(call.in[O::logits].extent(1));
    double loss = 0;
    for (size_t n = 0; n < labels.size(); ++n) {
        const double largest = *std::max_element(&x[n * k], &x[n * k] + k);
        double sum = 0;
        for (size_t j = 0; j < k; ++j) sum += std::exp(x[n * k + j] - largest);
        for (size_t j = 0; j < k; ++j)
            loss -= target(j, labels[n], smoothing, k) * (x[n * k + j] - largest - std::log(sum));
    }
    write(call.out[O::loss], {labels.empty() ? 0 : loss / double(labels.size())});
    const Values p = softmax_rows(x, k);
    if (call.in[O::dloss].defined())
        write(call.out[O::dlogits], cross_entropy_gradient(p, k, labels, smoothing, read(call.in[O::dloss])[0]));
    else
        write(call.out[O::probabilities], p);
}

void cross_entropy_grad(const Call& call) {
    using O = CrossEntropyGradOp;
    const Tensor& p = call.in[O::probabilities];
    write(call.out[0], cross_entropy_gradient(read(p), size_t(p.extent(1)), call.in[O::labels].span<int32_t>(),
                                              call.attrs.as<O>().smoothing, read(call.in[O::dloss])[0]));
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
