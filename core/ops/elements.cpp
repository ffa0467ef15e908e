// Element-wise ops: their rows and their reference.
#include "ringgrad/core/ops/elements.h"

#include "ringgrad/core/ops/reference.h"
#include "ringgrad/core/ops/rules.h"
#include "ringgrad/core/rng.h"

#include <numbers>

namespace rg {

RG_ELEMENT_OPS(RG_DECLARE_KERNELS)

namespace {

OutputSpecs infer_relu(In in, const Attrs&) { return like(in[ReluOp::x]); }

OutputSpecs infer_relu_grad(In in, const Attrs& attrs) {
    using O = ReluGradOp;
    const auto& a = attrs.as<O>();
    const Tensor& dy = in[O::dy];
    expect_shape("relu_grad", "y", in[O::y], dy.shape());
    OutputSpecs out = like(dy);
    for (const auto& [x, norm] : {std::pair{O::a, a.a_norm}, {O::b, a.b_norm}}) {
        const size_t dgamma = x == O::a ? O::a_dgamma : O::b_dgamma;
        out[dgamma] = out[dgamma + 1] = {Shape{in[x].defined() ? dy.extent(3) : 0}, precise(dy)};
        if (!in[x].defined()) continue;
        expect_image("relu_grad", "dy", dy);
        expect_shape("relu_grad", x == O::a ? "a" : "b", in[x], dy.shape());
        expect_norm("relu_grad", dy.extent(3), in.subspan(x + 1, 3));
        RG_CHECK(!norm.relu, "relu_grad: expected batch norms without ReLU, got one with ReLU");
    }
    return out;
}

OutputSpecs infer_gelu(In in, const Attrs&) { return like(in[GeluOp::x]); }

OutputSpecs infer_gelu_grad(In in, const Attrs&) {
    expect_same_shapes(rows::gelu_grad, in);
    return like(in[GeluGradOp::x]);
}

OutputSpecs infer_add(In in, const Attrs& attrs) {
    using O = AddOp;
    const auto& o = attrs.as<O>();
    expect_shape("add", "b", in[O::b], in[O::a].shape());
    for (const auto stats : {O::a_stats, O::b_stats}) {
        if (!in[stats].defined()) continue;
        expect_image("add", "a", in[O::a]);
        expect_norm("add", in[O::a].extent(3), in.subspan(stats, 3));
    }
    RG_CHECK(!o.a_norm.relu && !o.b_norm.relu, "add: expected batch norms without ReLU, got one with ReLU");
    return like(in[O::a]);
}

OutputSpecs infer_scale(In in, const Attrs&) {
    if (in[ScaleOp::factor].defined()) expect_shape("scale", "factor", in[ScaleOp::factor], {});
    return like(in[ScaleOp::x]);
}

OutputSpecs infer_scale_grad(In in, const Attrs&) {
    expect_same_shapes(rows::scale_grad, in);
    return {{{{}, precise(in[ScaleGradOp::x])}}};
}

OutputSpecs infer_cast(In in, const Attrs& attrs) {
    const DType to = attrs.as<CastOp>().to;
    RG_CHECK(to == DType::f32 || to == DType::bf16 || to == DType::f64, "cast: to ", name_of(to),
             " is not possible; f32, bf16 and f64 are");
    return {{{in[CastOp::x].shape(), to}}};
}

OutputSpecs infer_slice(In in, const Attrs& attrs) {
    const auto& a = attrs.as<SliceOp>();
    const Tensor& x = in[SliceOp::x];
    expect_rank("slice", "x", x, 1);
    RG_CHECK(a.begin >= 0 && a.count >= 0 && a.count <= x.numel() - a.begin, "slice: expected elements of [0, ",
             x.numel(), "), got ", a.count, " from element ", a.begin);
    return {{{{a.count}, x.dtype()}}};
}

OutputSpecs infer_slice_grad(In in, const Attrs& attrs) {
    const auto& a = attrs.as<SliceGradOp>();
    const Tensor& dy = in[SliceGradOp::dy];
    expect_rank("slice_grad", "dy", dy, 1);
    RG_CHECK(a.begin >= 0 && dy.numel() <= a.count - a.begin, "slice_grad: expected elements of [0, ", a.count,
             "), got ", dy.numel(), " from element ", a.begin);
    return {{{{a.count}, dy.dtype()}}};
}

OutputSpecs infer_dropout(In in, const Attrs& attrs) {
    const auto& a = attrs.as<DropoutOp>();
    expect_shape("dropout", "seed", in[DropoutOp::seed], {2});
    RG_CHECK(a.probability >= 0 && a.probability < 1, "dropout: the probability lies in [0, 1), got ", a.probability);
    RG_CHECK(a.stream < 1u << 24, "dropout: the stream lies below 2^24, got ", a.stream);
    return like(in[DropoutOp::x]);
}

void backward_relu(Backward& b) {
    b.give(ReluOp::x, run(op::relu_grad, {b.dy(), b.out(0)}, {}, {b.into(ReluOp::x)})[0]);
}

void backward_gelu(Backward& b) {
    b.give(GeluOp::x, run(op::gelu_grad, {b.dy(), b.in(GeluOp::x)}, {}, {b.into(GeluOp::x)})[0]);
}

void backward_add(Backward& b) {
    RG_CHECK(!b.attrs().as<AddOp>().relu, "add: expected no ReLU where gradients are recorded, got it; call relu()");
    for (int i : {AddOp::a, AddOp::b})
        if (b.wants(i)) b.give(i, b.dy());
}

void backward_scale(Backward& b) {
    using O = ScaleOp;
    if (b.wants(O::x)) b.give(O::x, run(op::scale, {b.dy(), b.in(O::factor)}, b.attrs(), {b.into(O::x)})[0]);
    if (b.wants(O::factor)) b.give(O::factor, run(op::scale_grad, {b.dy(), b.in(O::x)}, {}, {b.into(O::factor)})[0]);
}

void backward_cast(Backward& b) {
    b.give(CastOp::x, run(op::cast, {b.dy()}, CastOp{b.in(CastOp::x).dtype()}, {b.into(CastOp::x)})[0]);
}

void backward_slice(Backward& b) {
    const SliceGradOp attrs{b.attrs().as<SliceOp>().begin, b.in(SliceOp::x).numel()};
    b.give(SliceOp::x, run(op::slice_grad, {b.dy()}, attrs, {b.into(SliceOp::x)})[0]);
}

void backward_dropout(Backward& b) {
    b.give(DropoutOp::x, run(op::dropout, {b.dy(), b.in(DropoutOp::seed)}, b.attrs(), {b.into(DropoutOp::x)})[0]);
}

constexpr Argument kX[] = {{"x"}};
constexpr Argument kDy[] = {{"dy"}};
constexpr Argument kReluGrad[] = {
    {"dy"}, {"y"}, fused("a", Type::activation), fused("a_stats"), fused("a_gamma"), fused("a_beta"),
    fused("b", Type::activation), fused("b_stats"), fused("b_gamma"), fused("b_beta")};
constexpr Argument kGeluGrad[] = {{"dy"}, {"x"}};
constexpr Argument kAdd[] = {
    {"a"}, {"b"}, fused("a_stats"), fused("a_gamma"), fused("a_beta"), fused("b_stats"), fused("b_gamma"),
    fused("b_beta")};
constexpr Argument kScale[] = {{"x"}, {"factor", Type::precise, Presence::optional}};
constexpr Argument kScaleGrad[] = {{"dy"}, {"x"}};
constexpr Argument kDropout[] = {{"x"}, {"seed", Type::i32}};

} // namespace

RG_ROW(relu, .inputs = kX, .backward = backward_relu, .saves = saves_out(0));
RG_ROW(relu_grad, .inputs = kReluGrad, .outputs = 5);
RG_ROW(gelu, .inputs = kX, .backward = backward_gelu, .saves = saves_in(GeluOp::x));
RG_ROW(gelu_grad, .inputs = kGeluGrad);
RG_ROW(add, .inputs = kAdd, .backward = backward_add);
RG_ROW(scale, .inputs = kScale, .backward = backward_scale, .saves = saves_in(ScaleOp::x) | saves_in(ScaleOp::factor));
RG_ROW(scale_grad, .inputs = kScaleGrad);
RG_ROW(cast, .inputs = kX, .backward = backward_cast);
RG_ROW(slice, .inputs = kX, .backward = backward_slice);
RG_ROW(slice_grad, .inputs = kDy);
RG_ROW(dropout, .inputs = kDropout, .backward = backward_dropout, .saves = saves_in(DropoutOp::seed));

// ---- functions -----------------------------------------------------------------------------------------------------

Tensor relu(const Tensor& x) { return run(op::relu, {x})[0]; }

Tensor gelu(const Tensor& x) { return run(op::gelu, {x})[0]; }

Tensor add(const Tensor& a, const Tensor& b) { return run(op::add, {a, b})[0]; }

Tensor scale(const Tensor& x, float factor) { return run(op::scale, {x}, ScaleOp{factor})[0]; }

Tensor scale(const Tensor& x, const Tensor& factor) {
    RG_CHECK(factor.defined(), "scale: factor is undefined");
    return run(op::scale, {x, factor})[0];
}

Tensor cast(const Tensor& x, DType to) { return x.dtype() == to ? x : run(op::cast, {x}, CastOp{to})[0]; }

Tensor slice(const Tensor& x, int64_t begin, const Shape& shape) {
    RG_CHECK(x.defined(), "slice: x is undefined");
    return run(op::slice, {x.reshape({x.numel()})}, SliceOp{begin, shape.numel()})[0].reshape(shape);
}

Tensor dropout(const Tensor& x, float probability, const Tensor& seed, uint32_t stream) {
    return run(op::dropout, {x, seed}, DropoutOp{probability, stream})[0];
}

Tensor dropout(const Tensor& x, float probability, uint64_t seed, uint32_t stream) {
    expect_no_trace("dropout", "the seed");
    const Tensor seed_of_context = Tensor::empty({2}, DType::i32);
    if (!DryRun::active()) seed_of_context.copy_from(seed_tensor(seed));
    return dropout(x, probability, seed_of_context, stream);
}

Tensor seed_tensor(uint64_t seed) {
    const int32_t halves[] = {int32_t(uint32_t(seed)), int32_t(uint32_t(seed >> 32))};
    return Tensor::of<int32_t>({2}, halves);
}

// ---- reference -----------------------------------------------------------------------------------------------------

namespace ref {

void relu(const Call& call) {
    Values x = read(call.in[ReluOp::x]);
    for (double& v : x) v = v <= 0 ? 0 : v; // keeps a NaN
    write(call.out[0], x);
}

void relu_grad(const Call& call) {
    using O = ReluGradOp;
    const auto& o = call.attrs.as<O>();
    Values dx = read(call.in[O::dy]);
    const Values y = read(call.in[O::y]);
    for (size_t i = 0; i < dx.size(); ++i)
        if (y[i] <= 0) dx[i] = 0;
    write(call.out[O::dx], dx);
    if (call.in[O::a].defined())
        norm_sums(call.out[O::dx], call.in[O::a], call.in.subspan(O::a_stats, 3), o.a_norm, call.out[O::a_dgamma],
                  call.out[O::a_dbeta]);
    if (call.in[O::b].defined())
        norm_sums(call.out[O::dx], call.in[O::b], call.in.subspan(O::b_stats, 3), o.b_norm, call.out[O::b_dgamma],
                  call.out[O::b_dbeta]);
}

void gelu(const Call& call) {
    Values x = read(call.in[GeluOp::x]);
    for (double& v : x) v *= 0.5 * std::erfc(-v * std::sqrt(0.5));
    write(call.out[0], x);
}

void gelu_grad(const Call& call) {
    const Values dy = read(call.in[GeluGradOp::dy]);
    Values x = read(call.in[GeluGradOp::x]);
    for (size_t i = 0; i < x.size(); ++i) {
        const double density = std::exp(-0.5 * x[i] * x[i]) * std::sqrt(0.5 / std::numbers::pi);
        x[i] = dy[i] * (0.5 * std::erfc(-x[i] * std::sqrt(0.5)) + x[i] * density);
    }
    write(call.out[0], x);
}

void add(const Call& call) {
    using O = AddOp;
    const auto& o = call.attrs.as<O>();
    Values sum = read(normalised(call.in[O::a], call.in.subspan(O::a_stats, 3), o.a_norm));
    const Values b = read(normalised(call.in[O::b], call.in.subspan(O::b_stats, 3), o.b_norm));
    for (size_t i = 0; i < sum.size(); ++i) {
        sum[i] += b[i];
        if (o.relu && sum[i] <= 0) sum[i] = 0;
    }
    write(call.out[0], sum);
}

void scale(const Call& call) {
    Values x = read(call.in[ScaleOp::x]);
    const Tensor& factor = call.in[ScaleOp::factor];
    const double times = factor.defined() ? read(factor)[0] : double(call.attrs.as<ScaleOp>().constant);
    for (double& v : x) v *= times;
    write(call.out[0], x);
}

void scale_grad(const Call& call) {
    const Values dy = read(call.in[ScaleGradOp::dy]), x = read(call.in[ScaleGradOp::x]);
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += dy[i] * x[i];
    write(call.out[0], {sum});
}

void cast(const Call& call) {
    const Tensor converted = call.in[CastOp::x].to(call.attrs.as<CastOp>().to);
    if (converted.bytes()) std::copy_n(converted.bytes_data(), converted.bytes(), call.out[0].bytes_data());
}

void slice(const Call& call) {
    const auto& a = call.attrs.as<SliceOp>();
    const Values x = read(call.in[SliceOp::x]);
    const auto first = x.begin() + a.begin;
    write(call.out[0], Values(first, first + a.count));
}

void slice_grad(const Call& call) {
    const auto& a = call.attrs.as<SliceGradOp>();
    const Values dy = read(call.in[SliceGradOp::dy]);
    Values dx(size_t(a.count), 0.0);
    std::copy(dy.begin(), dy.end(), dx.begin() + a.begin);
    write(call.out[0], dx);
}

void dropout(const Call& call) {
    const auto& a = call.attrs.as<DropoutOp>();
    Values x = read(call.in[DropoutOp::x]);
    const double keep = 1 - double(a.probability);
    for (size_t i = 0; i < x.size(); ++i) {
        Rng random(seed_of(call.in[DropoutOp::seed].data<int32_t>()), Purpose::dropout, a.stream, i);
        x[i] = random.uniform() < a.probability ? 0 : x[i] / keep;
    }
    write(call.out[0], x);
}

} // namespace ref

} // namespace rg
