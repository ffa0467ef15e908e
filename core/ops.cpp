// The rows of the op table and the functions of ops.h. Everything that is to be known of an op, save its kernels,
// stands here: shape rule, backward rule, what the backward rule reads, arithmetic.
#include "core/ops.h"

#include "core/context.h"
#include "core/kernels.h" // ref:: and cpu:: kernels of every op, declared from RG_OPS
#include "core/plan.h"

namespace rg {

namespace {

using In = std::span<const Tensor>;

// ---- shape rules ---------------------------------------------------------------------------------------------------

void expect_rank(const char* op, const char* name, const Tensor& t, int rank) {
    RG_CHECK(t.defined(), op, ": ", name, " is undefined");
    RG_CHECK(t.shape().rank() == rank, op, ": ", name, " needs ", rank, " extents, got ", t.shape().str());
}

void expect_shape(const char* op, const char* name, const Tensor& t, const Shape& shape) {
    RG_CHECK(t.defined(), op, ": ", name, " is undefined");
    RG_CHECK(t.shape() == shape, op, ": ", name, " needs shape ", shape.str(), ", got ", t.shape().str());
}

void expect_float(const char* op, const char* name, const Tensor& t, DType as) {
    RG_CHECK(t.dtype() == as && (as == DType::f32 || as == DType::f64), op, ": ", name, " is ", name_of(t.dtype()),
             ", expected ", as == DType::f64 ? "f64" : "f32", t.dtype() == DType::bf16 ? "; cast() it" : "");
}

/// Values that flow through a network: f32, bf16 (stored so, computed in f32), or f64.
void expect_activation(const char* op, const char* name, const Tensor& t, DType as) {
    RG_CHECK(t.defined(), op, ": ", name, " is undefined");
    RG_CHECK(t.dtype() == as && (as == DType::bf16 || as == DType::f32 || as == DType::f64), op, ": ", name, " is ",
             name_of(t.dtype()), ", expected ", as == DType::bf16 || as == DType::f64 ? name_of(as) : "f32 or bf16");
}

/// The type of parameters, statistics and sums beside activations x: f32 beside bf16.
DType precise(const Tensor& x) { return x.dtype() == DType::bf16 ? DType::f32 : x.dtype(); }

/// Four extents, of which only the first, the number of images, may be zero.
void expect_image(const char* op, const char* name, const Tensor& t) {
    expect_rank(op, name, t, 4);
    RG_CHECK(t.extent(1) >= 1 && t.extent(2) >= 1 && t.extent(3) >= 1, op, ": ", name,
             " has an empty extent: ", t.shape().str());
}

int64_t window_extent(const char* op, int64_t extent, int64_t window, int64_t stride, int64_t pad) {
    RG_CHECK(stride >= 1 && pad >= 0 && window >= 1, op, ": window ", window, ", stride ", stride, ", padding ", pad,
             " are not possible");
    RG_CHECK(extent + 2 * pad >= window, op, ": the window (", window, ") exceeds the padded input (", extent + 2 * pad,
             ")");
    return (extent + 2 * pad - window) / stride + 1;
}

OutputSpecs like(const Tensor& t) { return {{{t.shape(), t.dtype()}}}; }

OutputSpecs infer_conv2d(In in, const Attrs& a) {
    const Tensor &x = in[0], &w = in[1], &b = in[2];
    expect_image("conv2d", "x", x);
    expect_rank("conv2d", "w", w, 4);
    RG_CHECK(w.extent(0) >= 1, "conv2d: w has k=0");
    RG_CHECK(w.extent(3) == x.extent(3), "conv2d: w has c=", w.extent(3), ", x has c=", x.extent(3));
    expect_activation("conv2d", "x", x, x.dtype());
    expect_float("conv2d", "w", w, precise(x));
    if (b.defined()) {
        expect_shape("conv2d", "b", b, {w.extent(0)});
        expect_float("conv2d", "b", b, precise(x));
    }
    const Shape y{x.extent(0), window_extent("conv2d", x.extent(1), w.extent(1), a.stride, a.pad),
                  window_extent("conv2d", x.extent(2), w.extent(2), a.stride, a.pad), w.extent(0)};
    return {{{y, x.dtype()}, {a.stats ? Shape{2, w.extent(0)} : Shape{0}, precise(x)}}};
}

OutputSpecs infer_conv2d_dgrad(In in, const Attrs& a) { // dy, w [, what the result is added to]
    const Tensor &dy = in[0], &w = in[1];
    expect_rank("conv2d_dgrad", "dy", dy, 4);
    expect_rank("conv2d_dgrad", "w", w, 4);
    expect_activation("conv2d_dgrad", "dy", dy, dy.dtype());
    expect_float("conv2d_dgrad", "w", w, precise(dy));
    expect_shape("conv2d_dgrad", "dy", dy,
                 {dy.extent(0), window_extent("conv2d_dgrad", a.height, w.extent(1), a.stride, a.pad),
                  window_extent("conv2d_dgrad", a.width, w.extent(2), a.stride, a.pad), w.extent(0)});
    const Shape dx{dy.extent(0), a.height, a.width, w.extent(3)};
    if (in[2].defined()) {
        expect_shape("conv2d_dgrad", "the other part", in[2], dx);
        expect_activation("conv2d_dgrad", "the other part", in[2], dy.dtype());
    }
    return {{{dx, dy.dtype()}}};
}

OutputSpecs infer_conv2d_wgrad(In in, const Attrs& a) {
    const Tensor &dy = in[0], &x = in[1];
    expect_rank("conv2d_wgrad", "dy", dy, 4);
    expect_rank("conv2d_wgrad", "x", x, 4);
    expect_activation("conv2d_wgrad", "x", x, x.dtype());
    expect_activation("conv2d_wgrad", "dy", dy, x.dtype());
    expect_shape("conv2d_wgrad", "dy", dy,
                 {x.extent(0), window_extent("conv2d_wgrad", x.extent(1), a.height, a.stride, a.pad),
                  window_extent("conv2d_wgrad", x.extent(2), a.width, a.stride, a.pad), dy.extent(3)});
    return {{{{dy.extent(3), a.height, a.width, x.extent(3)}, precise(x)}, {{dy.extent(3)}, precise(x)}}};
}

OutputSpecs infer_channel_stats(In in, const Attrs&) {
    expect_image("channel_stats", "x", in[0]);
    expect_activation("channel_stats", "x", in[0], in[0].dtype());
    return {{{{2, in[0].extent(3)}, precise(in[0])}}};
}

/// Inputs of batch_norm from `first` on: x, stats, gamma, beta.
void expect_batch_norm(const char* op, In in, size_t first) {
    const Tensor& x = in[first];
    expect_image(op, "x", x);
    expect_shape(op, "stats", in[first + 1], {2, x.extent(3)});
    expect_shape(op, "gamma", in[first + 2], {x.extent(3)});
    expect_shape(op, "beta", in[first + 3], {x.extent(3)});
    expect_activation(op, "x", x, x.dtype());
    for (size_t i = first + 1; i < first + 4; ++i)
        expect_float(op, i == first + 1 ? "stats" : i == first + 2 ? "gamma" : "beta", in[i], precise(x));
}

OutputSpecs infer_batch_norm(In in, const Attrs&) {
    expect_batch_norm("batch_norm", in, 0);
    return like(in[0]);
}

OutputSpecs infer_batch_norm_sums(In in, const Attrs&) {
    expect_batch_norm("batch_norm_sums", in, 1);
    expect_shape("batch_norm_sums", "dy", in[0], in[1].shape());
    expect_activation("batch_norm_sums", "dy", in[0], in[1].dtype());
    return {{{{in[1].extent(3)}, precise(in[1])}, {{in[1].extent(3)}, precise(in[1])}}};
}

OutputSpecs infer_batch_norm_grad(In in, const Attrs&) {
    // dy, x, stats, gamma, beta, and the sums [2 c] of batch_norm_sums: dgamma (row 0), dbeta (row 1)
    expect_batch_norm("batch_norm_grad", in, 1);
    expect_shape("batch_norm_grad", "dy", in[0], in[1].shape());
    expect_activation("batch_norm_grad", "dy", in[0], in[1].dtype());
    expect_shape("batch_norm_grad", "sums", in[5], {2, in[1].extent(3)});
    expect_float("batch_norm_grad", "sums", in[5], precise(in[1]));
    return like(in[1]);
}

OutputSpecs infer_rank_stats(In in, const Attrs&) {
    expect_rank("rank_stats", "stats", in[0], 2);
    expect_float("rank_stats", "stats", in[0], in[0].dtype());
    return like(in[0]);
}

OutputSpecs infer_rank_sums(In in, const Attrs&) {
    expect_rank("rank_sums", "dgamma", in[0], 1);
    expect_shape("rank_sums", "dbeta", in[1], in[0].shape());
    for (const Tensor& t : in) expect_float("rank_sums", "an input", t, in[0].dtype());
    return {{{{2, in[0].numel()}, in[0].dtype()}}};
}

OutputSpecs infer_running_update(In in, const Attrs& a) {
    expect_rank("running_update", "stats", in[1], 2);
    expect_shape("running_update", "running", in[0], in[1].shape());
    RG_CHECK(a.height >= 0 && a.width >= 0, "running_update: ", a.height, " images of ", a.width, " values");
    return like(in[0]);
}

OutputSpecs infer_cast(In in, const Attrs& a) {
    expect_activation("cast", "x", in[0], in[0].dtype());
    RG_CHECK(a.dtype == DType::f32 || a.dtype == DType::bf16 || a.dtype == DType::f64, "cast: to ", name_of(a.dtype),
             " is not possible; f32, bf16 and f64 are");
    return {{{in[0].shape(), a.dtype}}};
}

OutputSpecs infer_slice(In in, const Attrs& a) { // flat x
    expect_rank("slice", "x", in[0], 1);
    expect_activation("slice", "x", in[0], in[0].dtype());
    RG_CHECK(a.begin >= 0 && a.width >= 0 && a.width <= in[0].numel() - a.begin, "slice: expected elements of [0, ",
             in[0].numel(), "), got ", a.width, " from element ", a.begin);
    return {{{{a.width}, in[0].dtype()}}};
}

OutputSpecs infer_slice_grad(In in, const Attrs& a) { // flat dy
    expect_rank("slice_grad", "dy", in[0], 1);
    expect_activation("slice_grad", "dy", in[0], in[0].dtype());
    RG_CHECK(a.begin >= 0 && in[0].numel() <= a.width - a.begin, "slice_grad: expected elements of [0, ", a.width,
             "), got ", in[0].numel(), " from element ", a.begin);
    return {{{{a.width}, in[0].dtype()}}};
}

template <const char* const& kOp, bool kParameters = false>
OutputSpecs infer_same_shapes(In in, const Attrs&) {
    for (const Tensor& t : in) {
        expect_shape(kOp, "an input", t, in[0].shape());
        (kParameters ? expect_float : expect_activation)(kOp, "an input", t, in[0].dtype());
    }
    return like(in[0]);
}
const char* const kRelu = "relu";
const char* const kReluGrad = "relu_grad";
const char* const kAdd = "add";
const char* const kSoftmaxGrad = "softmax_grad";

OutputSpecs infer_dropout(In in, const Attrs& a) {
    expect_activation("dropout", "x", in[0], in[0].dtype());
    expect_shape("dropout", "seed", in[1], {2});
    RG_CHECK(in[1].dtype() == DType::i32, "dropout: the seed is i32, got ", name_of(in[1].dtype()));
    RG_CHECK(a.rate >= 0 && a.rate < 1, "dropout: the probability lies in [0, 1), got ", a.rate);
    RG_CHECK(a.stream < 1u << 24, "dropout: the stream lies below 2^24, got ", a.stream);
    return like(in[0]);
}

/// Flat buffers of one shape, of which all but the last, the gradients, are updated; then what varies, f32, and perhaps
/// what first_non_finite has found.
OutputSpecs infer_update(const char* op, In in, int64_t varying) {
    OutputSpecs out;
    for (size_t i = 0; i + 2 < in.size(); ++i) {
        expect_shape(op, "a buffer", in[i], in[0].shape());
        expect_float(op, "a buffer", in[i], in[0].dtype());
        for (size_t j = 0; j < i; ++j)
            RG_CHECK(in[i].key() != in[j].key(), op, ": expected different buffers, got the same one as inputs ", j,
                     " and ", i, "; allocate another");
        if (i + 3 < in.size()) out[i] = {in[0].shape(), in[0].dtype()};
    }
    const Tensor &now = in[in.size() - 2], &found = in.back();
    expect_shape(op, varying == 1 ? "lr" : "lr_and_step", now, {varying});
    expect_float(op, varying == 1 ? "lr" : "lr_and_step", now, DType::f32);
    if (found.defined()) {
        expect_shape(op, "unless_found", found, {});
        RG_CHECK(found.dtype() == DType::i32, op, ": unless_found is i32, got ", name_of(found.dtype()));
    }
    return out;
}

OutputSpecs infer_sgdm_update(In in, const Attrs&) { return infer_update("sgdm_update", in, 1); }

OutputSpecs infer_adam_update(In in, const Attrs& a) {
    RG_CHECK(a.beta1 >= 0 && a.beta1 < 1 && a.beta2 >= 0 && a.beta2 < 1,
             "adam_update: beta1 and beta2 lie in [0, 1), got ", a.beta1, " and ", a.beta2);
    return infer_update("adam_update", in, 2);
}

OutputSpecs infer_first_non_finite(In in, const Attrs&) {
    RG_CHECK(in[0].defined(), "first_non_finite: values is undefined");
    expect_float("first_non_finite", "values", in[0], in[0].dtype());
    RG_CHECK(in[0].numel() <= INT32_MAX, "first_non_finite: at most 2^31 - 1 values, got ", in[0].numel());
    if (in[1].defined()) {
        expect_shape("first_non_finite", "loss", in[1], {});
        expect_float("first_non_finite", "loss", in[1], in[0].dtype());
    }
    return {{{{}, DType::i32}}};
}

OutputSpecs infer_augment(In in, const Attrs& a) {
    expect_image("augment", "images", in[0]);
    const int64_t n = in[1].defined() && in[1].shape().rank() == 1 ? in[1].extent(0) : 0, c = in[0].extent(3);
    RG_CHECK(in[0].dtype() == DType::u8 && c <= 4, "augment: images are u8 of 1 to 4 channels, got ",
             name_of(in[0].dtype()), " ", in[0].shape().str());
    expect_shape("augment", "indices", in[1], {n});
    expect_shape("augment", "views", in[2], {n, 3});
    RG_CHECK(in[1].dtype() == DType::i32 && in[2].dtype() == DType::i32, "augment: indices and views are i32, got ",
             name_of(in[1].dtype()), " and ", name_of(in[2].dtype()));
    expect_shape("augment", "statistics", in[3], {2, c});
    expect_float("augment", "statistics", in[3], DType::f32);
    RG_CHECK(a.height >= 1 && a.height <= in[0].extent(1) && a.width >= 1 && a.width <= in[0].extent(2),
             "augment: a window of ", a.height, " x ", a.width, " in images of ", in[0].extent(1), " x ",
             in[0].extent(2));
    RG_CHECK(a.dtype == DType::f32 || a.dtype == DType::bf16, "augment: gives f32 or bf16, not ", name_of(a.dtype));
    return {{{{n, a.height, a.width, c}, a.dtype}}};
}

Shape pooled(const char* op, const Tensor& x, const Attrs& a) {
    expect_rank(op, "x", x, 4);
    expect_activation(op, "x", x, x.dtype());
    return {x.extent(0), window_extent(op, x.extent(1), a.window, a.stride, 0),
            window_extent(op, x.extent(2), a.window, a.stride, 0), x.extent(3)};
}

OutputSpecs infer_max_pool2d(In in, const Attrs& a) {
    const Shape y = pooled("max_pool2d", in[0], a);
    RG_CHECK(a.window <= 15, "max_pool2d: window at most 15, got ", a.window);
    return {{{y, in[0].dtype()}, {y, DType::u8}}}; // the second: position of the maximum in its window
}

OutputSpecs infer_avg_pool2d(In in, const Attrs& a) { return {{{pooled("avg_pool2d", in[0], a), in[0].dtype()}}}; }

OutputSpecs infer_pool_grad(In in, const Attrs& a) {
    const char* const op = in.size() > 1 ? "max_pool2d_grad" : "avg_pool2d_grad";
    const Tensor& dy = in[0];
    expect_rank(op, "dy", dy, 4);
    expect_activation(op, "dy", dy, dy.dtype());
    expect_shape(op, "dy", dy,
                 {dy.extent(0), window_extent(op, a.height, a.window, a.stride, 0),
                  window_extent(op, a.width, a.window, a.stride, 0), dy.extent(3)});
    if (in.size() > 1) {
        expect_shape(op, "positions", in[1], dy.shape());
        RG_CHECK(in[1].dtype() == DType::u8, op, ": positions are u8, got ", name_of(in[1].dtype()));
    }
    return {{{{dy.extent(0), a.height, a.width, dy.extent(3)}, dy.dtype()}}};
}

OutputSpecs infer_softmax(In in, const Attrs&) {
    expect_rank("softmax", "x", in[0], 2);
    expect_float("softmax", "x", in[0], in[0].dtype());
    return like(in[0]);
}

OutputSpecs infer_cross_entropy(In in, const Attrs& a) {
    expect_rank("cross_entropy", "logits", in[0], 2);
    expect_float("cross_entropy", "logits", in[0], in[0].dtype());
    expect_shape("cross_entropy", "labels", in[1], {in[0].extent(0)});
    RG_CHECK(in[1].dtype() == DType::i32, "cross_entropy: labels are i32, got ", name_of(in[1].dtype()));
    RG_CHECK(a.rate >= 0 && a.rate < 1, "cross_entropy: label smoothing lies in [0, 1), got ", a.rate);
    return {{{{}, in[0].dtype()}, {in[0].shape(), in[0].dtype()}}}; // loss, probabilities
}

OutputSpecs infer_cross_entropy_grad(In in, const Attrs& a) { // probabilities, labels, gradient of the loss
    const DType type = infer_cross_entropy(in.first(2), a)[0].dtype;
    RG_CHECK(in[2].defined() && in[2].numel() == 1, "cross_entropy_grad: the gradient of the loss needs one element");
    expect_float("cross_entropy_grad", "the gradient of the loss", in[2], type);
    return like(in[0]);
}

OutputSpecs infer_cross_entropy_with_grad(In in, const Attrs& a) { // logits, labels, gradient of the loss
    const OutputSpecs out = infer_cross_entropy(in.first(2), a);
    expect_shape("cross_entropy_with_grad", "the gradient of the loss", in[2], {});
    expect_float("cross_entropy_with_grad", "the gradient of the loss", in[2], in[0].dtype());
    return out; // loss, gradient of the logits
}

OutputSpecs infer_mse_loss(In in, const Attrs&) {
    expect_float("mse_loss", "prediction", in[0], in[0].dtype());
    expect_shape("mse_loss", "target", in[1], in[0].shape());
    expect_float("mse_loss", "target", in[1], in[0].dtype());
    return {{{{}, in[0].dtype()}}};
}

OutputSpecs infer_mse_loss_grad(In in, const Attrs& a) { // prediction, target, gradient of the loss
    const DType type = infer_mse_loss(in.first(2), a)[0].dtype;
    RG_CHECK(in[2].defined() && in[2].numel() == 1, "mse_loss_grad: the gradient of the loss needs one element");
    expect_float("mse_loss_grad", "the gradient of the loss", in[2], type);
    return like(in[0]);
}

// Rows that only a plan uses (fuse.cpp): joined ops, whose inputs are those of their parts.

OutputSpecs infer_norm_conv2d(In in, const Attrs& a) { // x, stats, gamma, beta of x; w, b
    expect_batch_norm("norm_conv2d", in, 0);
    return infer_conv2d(std::array{in[0], in[4], in[5]}, a);
}

OutputSpecs infer_conv2d_norm(In in, const Attrs& a) { // x, w, b; stats, gamma, beta of the convolution's result
    const OutputSpec y = infer_conv2d(in.first(3), a)[0];
    for (size_t i = 3; i < 6; ++i) expect_float("conv2d_norm", "an input", in[i], precise(in[0]));
    expect_shape("conv2d_norm", "stats", in[3], {2, y.shape[3]});
    expect_shape("conv2d_norm", "gamma", in[4], {y.shape[3]});
    expect_shape("conv2d_norm", "beta", in[5], {y.shape[3]});
    if (a.window > 1) // pooled by windows side by side
        return {{{{y.shape[0], window_extent("conv2d_norm", y.shape[1], a.window, a.window, 0),
                   window_extent("conv2d_norm", y.shape[2], a.window, a.window, 0), y.shape[3]},
                  y.dtype}}};
    return {{y}};
}

OutputSpecs infer_conv2d_norm_grad(In in, const Attrs& a) {
    // dz, y, stats, gamma, beta, sums as batch_norm_grad takes them; x [, stats, gamma, beta of x]; w [, what the data
    // gradient is added to]
    const OutputSpec dy = infer_batch_norm_grad(in.first(6), a)[0];
    const Tensor &x = in[6], &w = in[10];
    if (in[7].defined()) expect_batch_norm("conv2d_norm_grad", in, 6);
    const OutputSpec y = infer_conv2d(std::array{x, w, Tensor()}, a)[0];
    RG_CHECK(y.shape == dy.shape, "conv2d_norm_grad: y needs shape ", y.shape.str(), ", got ", dy.shape.str());
    const Shape sums = a.stats ? Shape{x.extent(3)} : Shape{0};
    expect_activation("conv2d_norm_grad", "x", x, in[1].dtype());
    if (in[11].defined()) {
        expect_shape("conv2d_norm_grad", "the other part", in[11], x.shape());
        expect_activation("conv2d_norm_grad", "the other part", in[11], x.dtype());
    }
    const DType type = precise(x);
    return {{{w.shape(), type}, {{w.extent(0)}, type}, {x.shape(), x.dtype()}, {sums, type}, {sums, type}}};
}

OutputSpecs infer_norm_max_pool2d(In in, const Attrs& a) {
    expect_batch_norm("norm_max_pool2d", in, 0);
    return infer_max_pool2d(in.first(1), a);
}

OutputSpecs infer_norm_avg_pool2d(In in, const Attrs& a) {
    expect_batch_norm("norm_avg_pool2d", in, 0);
    return infer_avg_pool2d(in.first(1), a);
}

OutputSpecs infer_norm_pool2d_grad(In in, const Attrs& a) { // dy [, positions: of max]; x, stats, gamma, beta
    expect_batch_norm("norm_pool2d_grad", in, 2);
    const Shape y = pooled("norm_pool2d_grad", in[2], a);
    expect_shape("norm_pool2d_grad", "dy", in[0], y);
    if (in[1].defined()) expect_shape("norm_pool2d_grad", "positions", in[1], y);
    expect_activation("norm_pool2d_grad", "dy", in[0], in[2].dtype());
    const int64_t c = in[2].extent(3);
    return {{{in[2].shape(), in[2].dtype()}, {{c}, precise(in[2])}, {{c}, precise(in[2])}}};
}

OutputSpecs infer_norm_add(In in, const Attrs&) { // a [, stats, gamma, beta of a]; b [, stats, gamma, beta of b]
    for (size_t first : {size_t(0), size_t(4)}) {
        if (in[first + 1].defined()) expect_batch_norm("norm_add", in, first);
        expect_image("norm_add", "an input", in[first]);
        expect_activation("norm_add", "an input", in[first], in[0].dtype());
    }
    expect_shape("norm_add", "b", in[4], in[0].shape());
    return like(in[0]);
}

OutputSpecs infer_norm_add_grad(In in, const Attrs&) { // dy, y; a, stats, gamma, beta of a [; the same of b]
    const DType type = precise(in[0]);
    std::array<OutputSpec, kMaxOutputs> out{{{in[0].shape(), in[0].dtype()}}};
    expect_shape("norm_add_grad", "y", in[1], in[0].shape());
    expect_activation("norm_add_grad", "y", in[1], in[0].dtype());
    for (size_t b : {size_t(0), size_t(1)}) {
        const Tensor& x = in[2 + 4 * b];
        out[1 + 2 * b] = out[2 + 2 * b] = {Shape{x.defined() ? x.extent(3) : 0}, type};
        if (b && !x.defined()) continue;
        expect_batch_norm("norm_add_grad", in, 2 + 4 * b);
        expect_shape("norm_add_grad", "an input", x, in[0].shape());
        expect_activation("norm_add_grad", "an input", x, in[0].dtype());
    }
    return out;
}

// ---- backward rules ------------------------------------------------------------------------------------------------

void backward_conv2d(Backward& b) {
    const Tensor &x = b.in(0), &w = b.in(1);
    Attrs a{.stride = b.attrs().stride, .pad = b.attrs().pad};
    if (b.wants(1) || b.wants(2)) {
        a.height = w.extent(1), a.width = w.extent(2);
        const auto out = run(Op::conv2d_wgrad, {b.dy(), x}, a, {b.into(1), b.into(2)});
        for (int i : {1, 2})
            if (b.wants(i)) b.give(i, out[size_t(i - 1)]);
    }
    if (b.wants(0)) {
        a.height = x.extent(1), a.width = x.extent(2);
        b.give(0, run(Op::conv2d_dgrad, {b.dy(), w, {}}, a, {b.into(0)})[0]);
    }
}

void backward_batch_norm(Backward& b) {
    const Tensor &x = b.in(0), &stats = b.in(1), &gamma = b.in(2), &beta = b.in(3);
    const Tensor dbeta_into = beta.key() == gamma.key() ? Tensor() : b.into(3); // one tensor as both: two buffers
    const auto out = run(Op::batch_norm_sums, {b.dy(), x, stats, gamma, beta}, b.attrs(), {b.into(2), dbeta_into});
    const Tensor &dgamma = out[0], &dbeta = out[1];
    if (b.wants(2)) b.give(2, dgamma);
    if (b.wants(3)) b.give(3, dbeta);
    b.covers(1, 0); // stats are those of x
    if (!b.wants(0)) return;
    const Tensor sums = b.attrs().frozen ? Tensor::constant({2, gamma.numel()}, 0, gamma.dtype())
                                         : run(Op::rank_sums, {dgamma, dbeta})[0];
    b.give(0, run(Op::batch_norm_grad, {b.dy(), x, stats, gamma, beta, sums}, b.attrs(), {b.into(0)})[0]);
}

void backward_relu(Backward& b) { b.give(0, run(Op::relu_grad, {b.dy(), b.out(0)}, {}, {b.into(0)})[0]); }

void backward_add(Backward& b) {
    for (int i : {0, 1})
        if (b.wants(i)) b.give(i, b.dy());
}

Attrs pool_attrs(Backward& b) {
    Attrs a = b.attrs();
    a.height = b.in(0).extent(1), a.width = b.in(0).extent(2);
    return a;
}
void backward_max_pool2d(Backward& b) {
    b.give(0, run(Op::max_pool2d_grad, {b.dy(), b.out(1)}, pool_attrs(b), {b.into(0)})[0]);
}
void backward_avg_pool2d(Backward& b) { b.give(0, run(Op::avg_pool2d_grad, {b.dy()}, pool_attrs(b), {b.into(0)})[0]); }
void backward_softmax(Backward& b) { b.give(0, run(Op::softmax_grad, {b.dy(), b.out(0)}, {}, {b.into(0)})[0]); }
void backward_cross_entropy(Backward& b) {
    b.give(0, run(Op::cross_entropy_grad, {b.out(1), b.in(1), b.dy()}, b.attrs(), {b.into(0)})[0]);
}
void backward_mse_loss(Backward& b) {
    for (int i : {0, 1})
        if (b.wants(i)) b.give(i, run(Op::mse_loss_grad, {b.in(i), b.in(1 - i), b.dy()}, {}, {b.into(i)})[0]);
}
void backward_cast(Backward& b) { b.give(0, run(Op::cast, {b.dy()}, {.dtype = b.in(0).dtype()}, {b.into(0)})[0]); }
void backward_slice(Backward& b) {
    const Attrs a{.width = b.in(0).numel(), .begin = b.attrs().begin};
    b.give(0, run(Op::slice_grad, {b.dy()}, a, {b.into(0)})[0]);
}
void backward_dropout(Backward& b) { b.give(0, run(Op::dropout, {b.dy(), b.in(1)}, b.attrs(), {b.into(0)})[0]); }

// ---- arithmetic ----------------------------------------------------------------------------------------------------

// 2 operations per multiply-add; y is the convolution's output side, w has the filter's extents.
double conv_flops(const Tensor& y, double r, double s, double c) { return 2.0 * double(y.numel()) * r * s * c; }
double flops_conv2d(const Call& call) {
    const Tensor& w = call.in[1];
    return conv_flops(call.out[0], double(w.extent(1)), double(w.extent(2)), double(w.extent(3)));
}
double flops_conv2d_dgrad(const Call& call) {
    const Tensor& w = call.in[1];
    return conv_flops(call.in[0], double(w.extent(1)), double(w.extent(2)), double(w.extent(3)));
}
double flops_first_non_finite(const Call& call) { return double(call.in[0].numel()); }
double flops_norm_conv2d(const Call& call) {
    const Tensor& w = call.in[4];
    return conv_flops(call.out[0], double(w.extent(1)), double(w.extent(2)), double(w.extent(3)));
}
double flops_conv2d_norm(const Call& call) { // of all pixels, whether they are pooled or not
    const int64_t window = std::max<int64_t>(1, call.attrs.window);
    return double(window * window) * flops_conv2d(call);
}
double flops_conv2d_norm_grad(const Call& call) {
    const Tensor& w = call.in[10];
    const double one = conv_flops(call.in[1], double(w.extent(1)), double(w.extent(2)), double(w.extent(3)));
    return call.out[2].defined() ? 2 * one : one;
}
double flops_conv2d_wgrad(const Call& call) {
    const Tensor& dw = call.out[0];
    return conv_flops(call.in[0], double(dw.extent(1)), double(dw.extent(2)), double(dw.extent(3)));
}

// ---- what integers may be ------------------------------------------------------------------------------------------

void check_below(int64_t end, const Tensor& values, const char* what) {
    if (values.device()) return;
    const auto all = values.span<int32_t>();
    for (size_t i = 0; i < all.size(); ++i)
        RG_CHECK(all[i] >= 0 && all[i] < end, what, " ", all[i], " of sample ", i, " lies outside [0, ", end, ")");
}

void check_labels(const Call& c) { check_below(c.in[0].extent(1), c.in[1], "cross_entropy: label"); }
void check_indices(const Call& c) { check_below(c.in[0].extent(0), c.in[1], "augment: index"); }

} // namespace

// ---- the table -----------------------------------------------------------------------------------------------------

#define RG_ROW(name, n_in, n_out, ...)                                                                                 \
    { #name, n_in, n_out, ref::name, cpu::name, __VA_ARGS__ }

const OpRow& row(Op op) {
    static const OpRow kRows[] = {
        RG_ROW(conv2d, 3, 2, infer_conv2d, backward_conv2d, saves_in(0) | saves_in(1), flops_conv2d),
        RG_ROW(conv2d_dgrad, 3, 1, infer_conv2d_dgrad, nullptr, 0, flops_conv2d_dgrad),
        RG_ROW(conv2d_wgrad, 2, 2, infer_conv2d_wgrad, nullptr, 0, flops_conv2d_wgrad),
        RG_ROW(channel_stats, 1, 1, infer_channel_stats),
        RG_ROW(rank_stats, 1, 1, infer_rank_stats),
        RG_ROW(batch_norm, 4, 1, infer_batch_norm, backward_batch_norm,
               saves_in(0) | saves_in(1) | saves_in(2) | saves_in(3)),
        RG_ROW(batch_norm_sums, 5, 2, infer_batch_norm_sums),
        RG_ROW(rank_sums, 2, 1, infer_rank_sums),
        RG_ROW(batch_norm_grad, 6, 1, infer_batch_norm_grad),
        RG_ROW(running_update, 2, 1, infer_running_update),
        RG_ROW(relu, 1, 1, infer_same_shapes<kRelu>, backward_relu, saves_out(0)),
        RG_ROW(relu_grad, 2, 1, infer_same_shapes<kReluGrad>),
        RG_ROW(add, 2, 1, infer_same_shapes<kAdd>, backward_add),
        RG_ROW(cast, 1, 1, infer_cast, backward_cast),
        RG_ROW(slice, 1, 1, infer_slice, backward_slice),
        RG_ROW(slice_grad, 1, 1, infer_slice_grad),
        RG_ROW(max_pool2d, 1, 2, infer_max_pool2d, backward_max_pool2d, saves_out(1)),
        RG_ROW(max_pool2d_grad, 2, 1, infer_pool_grad),
        RG_ROW(avg_pool2d, 1, 1, infer_avg_pool2d, backward_avg_pool2d),
        RG_ROW(avg_pool2d_grad, 1, 1, infer_pool_grad),
        RG_ROW(softmax, 1, 1, infer_softmax, backward_softmax, saves_out(0)),
        RG_ROW(softmax_grad, 2, 1, infer_same_shapes<kSoftmaxGrad, true>),
        RG_ROW(cross_entropy, 2, 2, infer_cross_entropy, backward_cross_entropy, saves_in(1) | saves_out(1), nullptr,
               check_labels),
        RG_ROW(cross_entropy_grad, 3, 1, infer_cross_entropy_grad),
        RG_ROW(mse_loss, 2, 1, infer_mse_loss, backward_mse_loss, saves_in(0) | saves_in(1)),
        RG_ROW(mse_loss_grad, 3, 1, infer_mse_loss_grad),
        RG_ROW(dropout, 2, 1, infer_dropout, backward_dropout, saves_in(1)),
        RG_ROW(sgdm_update, 5, 2, infer_sgdm_update),
        RG_ROW(adam_update, 6, 3, infer_adam_update),
        RG_ROW(first_non_finite, 2, 1, infer_first_non_finite, nullptr, 0, flops_first_non_finite),
        RG_ROW(augment, 4, 1, infer_augment, nullptr, 0, nullptr, check_indices),
        RG_ROW(norm_conv2d, 6, 2, infer_norm_conv2d, nullptr, 0, flops_norm_conv2d),
        RG_ROW(conv2d_norm, 6, 1, infer_conv2d_norm, nullptr, 0, flops_conv2d_norm),
        RG_ROW(conv2d_norm_grad, 12, 5, infer_conv2d_norm_grad, nullptr, 0, flops_conv2d_norm_grad),
        RG_ROW(norm_max_pool2d, 4, 2, infer_norm_max_pool2d),
        RG_ROW(norm_avg_pool2d, 4, 1, infer_norm_avg_pool2d),
        RG_ROW(norm_pool2d_grad, 6, 3, infer_norm_pool2d_grad),
        RG_ROW(norm_add, 8, 1, infer_norm_add),
        RG_ROW(norm_add_grad, 10, 5, infer_norm_add_grad),
        RG_ROW(cross_entropy_with_grad, 3, 2, infer_cross_entropy_with_grad, nullptr, 0, nullptr, check_labels),
    };
    static_assert(std::size(kRows) == size_t(Op::count), "one row per op, in the order of RG_OPS");
    return kRows[size_t(op)];
}

// ---- the functions of ops.h ----------------------------------------------------------------------------------------

Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& b, Conv conv) {
    return run(Op::conv2d, {x, w, b}, {.stride = conv.stride, .pad = conv.pad})[0];
}

WithStats conv2d_stats(const Tensor& x, const Tensor& w, const Tensor& b, Conv conv) {
    const auto out = run(Op::conv2d, {x, w, b}, {.stride = conv.stride, .pad = conv.pad, .stats = true});
    return {out[0], out[1]};
}

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b) {
    // A 1x1 convolution over images whose pixels are the samples, some per image, so that threads can share the images.
    expect_rank("linear", "x", x, 2);
    expect_rank("linear", "w", w, 2);
    RG_CHECK(w.extent(1) == x.extent(1), "linear: w has c=", w.extent(1), ", x has c=", x.extent(1));
    const int64_t n = x.extent(0), c = x.extent(1), k = w.extent(0);
    int64_t together = 1;
    for (int64_t divisor = 2; divisor <= 16; ++divisor)
        if (n % divisor == 0) together = divisor;
    if (together < 4) together = std::max<int64_t>(n, 1);
    return conv2d(x.reshape({n / together, 1, together, c}), w.reshape({k, 1, 1, c}), b).reshape({n, k});
}

Tensor channel_stats(const Tensor& x) { return run(Op::channel_stats, {x})[0]; }

Tensor combine_stats(const Tensor& stats) { return context().sync ? run(Op::rank_stats, {stats})[0] : stats; }

Tensor batch_norm(const Tensor& x, const Tensor& stats, const Tensor& gamma, const Tensor& beta, BatchNorm options) {
    return run(Op::batch_norm, {x, stats, gamma, beta},
               {.relu = options.relu, .frozen = options.frozen, .epsilon = options.epsilon})[0];
}

void update_running(const Tensor& running, const Tensor& stats, int64_t images, int64_t pixels, float momentum) {
    run(Op::running_update, {running, stats}, {.height = images, .width = pixels, .rate = momentum}, {running});
}

Tensor relu(const Tensor& x) { return run(Op::relu, {x})[0]; }
Tensor add(const Tensor& a, const Tensor& b) { return run(Op::add, {a, b})[0]; }
Tensor cast(const Tensor& x, DType to) { return x.dtype() == to ? x : run(Op::cast, {x}, {.dtype = to})[0]; }
Tensor slice(const Tensor& x, int64_t begin, const Shape& shape) {
    RG_CHECK(x.defined(), "slice: x is undefined");
    return run(Op::slice, {x.reshape({x.numel()})}, {.width = shape.numel(), .begin = begin})[0].reshape(shape);
}

namespace {

void expect_covered(const char* op, const Tensor& x, int64_t window, int64_t stride, Uncovered rest) {
    if (rest == Uncovered::drop || x.shape().rank() != 4 || window < 1 || stride < 1) return; // run() checks those
    const auto left = [&](int64_t extent) {
        return (extent - window) % stride - std::max<int64_t>(0, stride - window);
    };
    const int64_t rows = left(x.extent(1)), columns = left(x.extent(2));
    RG_CHECK(rows <= 0 && columns <= 0, op, ": expected windows of ", window, " with stride ", stride,
             " to cover x, got ", std::max<int64_t>(0, rows), " rows and ", std::max<int64_t>(0, columns),
             " columns left over of ", x.shape().str(), "; Uncovered::drop leaves them out");
}

} // namespace

Tensor max_pool2d(const Tensor& x, int64_t window, int64_t stride, Uncovered rest) {
    expect_covered("max_pool2d", x, window, stride, rest);
    return run(Op::max_pool2d, {x}, {.stride = stride, .window = window})[0];
}
Tensor avg_pool2d(const Tensor& x, int64_t window, int64_t stride, Uncovered rest) {
    expect_covered("avg_pool2d", x, window, stride, rest);
    return run(Op::avg_pool2d, {x}, {.stride = stride, .window = window})[0];
}
Tensor softmax(const Tensor& x) { return run(Op::softmax, {x})[0]; }
Tensor cross_entropy(const Tensor& logits, const Tensor& labels, float smoothing) {
    return run(Op::cross_entropy, {logits, labels}, {.rate = smoothing})[0];
}
Tensor mse_loss(const Tensor& prediction, const Tensor& target) { return run(Op::mse_loss, {prediction, target})[0]; }

namespace {

void expect_no_trace(const char* op, const char* what) {
    RG_CHECK(!Scope::current().trace, op, ": ", what, " of a traced function has to be a tensor, or each replay has the same");
}

/// The numbers as an op reads them, until the next call on this thread; in memory that is there already.
Tensor varying(const char* op, const char* what, std::initializer_list<float> values) {
    expect_no_trace(op, what);
    alignas(64) thread_local std::byte memory[64];
    thread_local const Tensor kHost = Tensor::borrow(memory, {2});
    std::copy(values.begin(), values.end(), kHost.data<float>());
    const Tensor host = kHost.slice(0, {int64_t(values.size())});
    if (!context().device) return host;
    const Tensor there = Tensor::empty(host.shape());
    if (!DryRun::active()) there.copy_from(host);
    return there;
}

} // namespace

Tensor dropout(const Tensor& x, float probability, const Tensor& seed, uint32_t stream) {
    return run(Op::dropout, {x, seed}, {.rate = probability, .stream = stream})[0];
}
Tensor dropout(const Tensor& x, float probability, uint64_t seed, uint32_t stream) {
    expect_no_trace("dropout", "the seed");
    const Tensor there = Tensor::empty({2}, DType::i32);
    if (!DryRun::active()) there.copy_from(seed_tensor(seed));
    return dropout(x, probability, there, stream);
}

Tensor seed_tensor(uint64_t seed) {
    const int32_t halves[] = {int32_t(uint32_t(seed)), int32_t(uint32_t(seed >> 32))};
    return Tensor::of<int32_t>({2}, halves);
}

void sgdm_update(const Tensor& parameters, const Tensor& velocity, const Tensor& gradients, const Sgdm& o,
                 const Tensor& lr, const Tensor& unless_found) {
    run(Op::sgdm_update, {parameters, velocity, gradients, lr, unless_found},
        {.momentum = o.momentum, .weight_decay = o.weight_decay, .nesterov = o.nesterov}, {parameters, velocity});
}
void sgdm_update(const Tensor& parameters, const Tensor& velocity, const Tensor& gradients, const Sgdm& o) {
    sgdm_update(parameters, velocity, gradients, o, varying("sgdm_update", "the learning rate", {o.lr}));
}

void adam_update(const Tensor& parameters, const Tensor& m, const Tensor& v, const Tensor& gradients, const Adam& o,
                 const Tensor& lr_and_step, const Tensor& unless_found) {
    run(Op::adam_update, {parameters, m, v, gradients, lr_and_step, unless_found},
        {.epsilon = o.epsilon, .weight_decay = o.weight_decay, .beta1 = o.beta1, .beta2 = o.beta2}, {parameters, m, v});
}
void adam_update(const Tensor& parameters, const Tensor& m, const Tensor& v, const Tensor& gradients, const Adam& o,
                 int64_t step) {
    RG_CHECK(step >= 1, "adam_update: steps are counted from 1, got ", step);
    adam_update(parameters, m, v, gradients, o, varying("adam_update", "learning rate and step", {o.lr, float(step)}));
}

Tensor augment(const Tensor& images, const Tensor& indices, const Tensor& views, const Tensor& statistics,
               const Window& window) {
    return run(Op::augment, {images, indices, views, statistics},
               {.height = window.height, .width = window.width, .dtype = window.dtype, .reflect = window.reflect})[0];
}

Tensor first_non_finite(const Tensor& values, const Tensor& loss, const Tensor& found) {
    return run(Op::first_non_finite, {values, loss}, {}, {found})[0];
}

} // namespace rg
