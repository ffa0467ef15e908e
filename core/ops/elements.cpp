// The ops of elements.h: their rows in the op table (core/op.h) and their reference implementations.
#include "core/ops/elements.h"

#include "core/ops/reference.h"
#include "core/ops/rules.h"
#include "core/rng.h"

#include <numbers>

namespace rg {

RG_ELEMENT_OPS(RG_DECLARE_KERNELS)

namespace {

/// Returns true if the gradient of the activation is computed from x, and false if from the result.
bool gradient_reads_x(Activation::Kind kind) {
    constexpr bool x = true, y = false;
    switch (kind) {
#define RG_CASE(name, from, ...)                                                                                       \
    case Activation::name: return from;
        RG_ACTIVATIONS(RG_CASE)
#undef RG_CASE
    }
    return x;
}

void expect_slope(const char* op, float slope) {
    // The backward pass infers the sign of x from the sign of the result. With a negative slope, the two would differ.
    RG_CHECK(slope >= 0 && std::isfinite(slope), op, ": expected a finite slope of at least 0, got ", slope);
}

OutputSpecs infer_activation(In in, const Attrs& attrs) {
    expect_slope("activation", attrs.as<ActivationOp>().activation.slope);
    return like(in[ActivationOp::x]);
}

void expect_no_activation(const char* op, const NormTensors& norm) {
    RG_CHECK(!norm.options.activation.kind, op, ": expected batch norms without an activation, got one with one");
}

OutputSpecs infer_activation_grad(In in, const Attrs& attrs) {
    using O = ActivationGradOp;
    const auto& a = attrs.as<O>();
    const Tensor& dy = in[O::dy];
    expect_shape("activation_grad", "from", in[O::from], dy.shape());
    OutputSpecs out = like(dy);
    const auto sums_of = [&](const char* name, const Operand& operand) -> OutputSpec {
        if (!operand.x.defined()) return {Shape{0}, precise(dy)};
        expect_image("activation_grad", "dy", dy);
        expect_shape("activation_grad", name, operand.x, dy.shape());
        expect_norm("activation_grad", dy.extent(3), operand.norm);
        expect_no_activation("activation_grad", operand.norm);
        return {Shape{dy.extent(3)}, precise(dy)};
    };
    out[O::a_dgamma] = out[O::a_dbeta] = sums_of("a", a.a_norm.operand(in));
    out[O::b_dgamma] = out[O::b_dbeta] = sums_of("b", a.b_norm.operand(in));
    return out;
}

OutputSpecs infer_add(In in, const Attrs& attrs) {
    using O = AddOp;
    const auto& o = attrs.as<O>();
    expect_shape("add", "b", in[O::b], in[O::a].shape());
    expect_fusible("add", o.activation);
    for (const NormTensors& norm : {o.a_norm.given(in), o.b_norm.given(in)}) {
        expect_no_activation("add", norm);
        if (!norm) continue;
        expect_image("add", "a", in[O::a]);
        expect_norm("add", in[O::a].extent(3), norm);
    }
    return like(in[O::a]);
}

const char* name_of(Binary kind) {
    constexpr const char* kNames[] = {
#define RG_NAME(name, ...) #name,
        RG_BINARIES(RG_NAME)
#undef RG_NAME
    };
    return kNames[size_t(kind)];
}

OutputSpecs infer_binary(In in, const Attrs& attrs) {
    using O = BinaryOp;
    repeats_of(name_of(attrs.as<O>().kind), in[O::b].shape(), in[O::a].shape());
    return like(in[O::a]);
}

OutputSpecs infer_sum(In in, const Attrs& attrs) {
    const Tensor &x = in[SumOp::x], &times = in[SumOp::times];
    const Shape& shape = attrs.as<SumOp>().shape;
    repeats_of("sum", shape, x.shape());
    if (times.defined()) expect_shape("sum", "times", times, x.shape());
    return {{{shape, shape.rank() ? x.dtype() : precise(x)}}};
}

OutputSpecs infer_sum_grad(In in, const Attrs& attrs) {
    const auto& a = attrs.as<SumGradOp>();
    repeats_of("sum_grad", in[SumGradOp::dy].shape(), a.shape);
    return {{{a.shape, a.type}}};
}

OutputSpecs infer_scale(In in, const Attrs&) {
    if (in[ScaleOp::factor].defined()) expect_shape("scale", "factor", in[ScaleOp::factor], {});
    return like(in[ScaleOp::x]);
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

/// Returns the extents of t without the last one, which is the number of channels.
std::span<const int64_t> row_extents(const Tensor& t) {
    return t.shape().extents().first(size_t(t.shape().rank() - 1));
}

/// Returns the shape of t with another number of channels.
Shape with_channels(const Tensor& t, int64_t channels) {
    std::vector<int64_t> extents(row_extents(t).begin(), row_extents(t).end());
    extents.push_back(channels);
    return Shape(extents);
}

OutputSpecs infer_concat(In in, const Attrs&) {
    const Tensor& first = in[ConcatOp::x0];
    int64_t channels = 0;
    for (const Tensor& t : in) {
        if (!t.defined()) continue;
        RG_CHECK(t.shape().rank() >= 1 && std::ranges::equal(row_extents(t), row_extents(first)),
                 "concat: expected tensors that differ only in the last extent, got ", first.shape().str(), " and ",
                 t.shape().str(), "; make the other extents the same");
        channels += channels_of(t);
    }
    return {{{with_channels(first, channels), first.dtype()}}};
}

OutputSpecs infer_concat_grad(In in, const Attrs& attrs) {
    const auto& a = attrs.as<ConcatGradOp>();
    const Tensor& dy = in[ConcatGradOp::dy];
    RG_CHECK(dy.shape().rank() >= 1 && a.begin >= 0 && a.count >= 0 && a.count <= channels_of(dy) - a.begin,
             "concat_grad: expected channels of ", dy.shape().str(), ", got ", a.count, " from channel ", a.begin);
    return {{{with_channels(dy, a.count), dy.dtype()}}};
}

OutputSpecs infer_dropout(In in, const Attrs& attrs) {
    const auto& a = attrs.as<DropoutOp>();
    expect_shape("dropout", "seed", in[DropoutOp::seed], {2});
    RG_CHECK(a.probability >= 0 && a.probability < 1, "dropout: the probability lies in [0, 1), got ", a.probability);
    RG_CHECK(a.stream < 1u << 24, "dropout: the stream lies below 2^24, got ", a.stream);
    return like(in[DropoutOp::x]);
}

uint32_t saved_by_activation(const Attrs& attrs) {
    return gradient_reads_x(attrs.as<ActivationOp>().activation.kind) ? input_bit(ActivationOp::x) : output_bit(0);
}

void backward_activation(BackwardContext& b) {
    using O = ActivationOp;
    const Activation activation = b.attrs().as<O>().activation;
    const Tensor& from = gradient_reads_x(activation.kind) ? b.in(O::x) : b.out(0);
    b.give(O::x, run(op::activation_grad, {b.dy(), from}, ActivationGradOp{activation}, {b.into(O::x)})[0]);
}

void backward_add(BackwardContext& b) {
    RG_CHECK(!b.attrs().as<AddOp>().activation.kind,
             "add: expected no activation where gradients are recorded, got one; ", "call activation()");
    for (int i : {AddOp::a, AddOp::b})
        if (b.wants(i)) b.give(i, b.dy());
}

uint32_t saved_by_binary(const Attrs& attrs) {
    using O = BinaryOp;
    return attrs.as<O>().kind == Binary::mul ? input_bit(O::a) | input_bit(O::b) : 0;
}

void backward_binary(BackwardContext& b) {
    using O = BinaryOp;
    const Tensor &dy = b.dy(), &x = b.in(O::a), &y = b.in(O::b);
    const auto give_a = [&](const Tensor& gradient) {
        if (b.wants(O::a)) b.give(O::a, gradient);
    };
    // Gives b the sum of gradient * times over the elements of a that read the same element of b.
    const auto give_b = [&](const Tensor& gradient, const Tensor& times = {}, float factor = 1) {
        if (!b.wants(O::b)) return;
        const bool same = x.shape() == y.shape();
        Tensor db = same ? times.defined() ? mul(gradient, times) : gradient
                         : cast(run(op::sum, {gradient, times}, SumOp{.shape = y.shape()})[0], y.dtype());
        b.give(O::b, factor == 1 ? db : scale(db, factor));
    };
    switch (b.attrs().as<O>().kind) {
    case Binary::add: return give_a(dy), give_b(dy);
    case Binary::sub: return give_a(dy), give_b(dy, {}, -1);
    case Binary::mul:
        if (b.wants(O::a)) give_a(run(op::binary, {dy, y}, b.attrs(), {b.into(O::a)})[0]);
        return give_b(dy, x);
    }
}

void backward_sum(BackwardContext& b) {
    const Tensor& x = b.in(SumOp::x);
    const SumGradOp attrs{x.shape(), x.dtype(), b.attrs().as<SumOp>().mean};
    b.give(SumOp::x, run(op::sum_grad, {b.dy()}, attrs, {b.into(SumOp::x)})[0]);
}

double flops_sum(const Call& call) { return double(call.in[SumOp::x].numel()); }

void backward_scale(BackwardContext& b) {
    using O = ScaleOp;
    if (b.wants(O::x)) b.give(O::x, run(op::scale, {b.dy(), b.in(O::factor)}, b.attrs(), {b.into(O::x)})[0]);
    if (b.wants(O::factor)) b.give(O::factor, run(op::sum, {mul(b.dy(), b.in(O::x))}, {}, {b.into(O::factor)})[0]);
}

void backward_cast(BackwardContext& b) {
    b.give(CastOp::x, run(op::cast, {b.dy()}, CastOp{b.in(CastOp::x).dtype()}, {b.into(CastOp::x)})[0]);
}

void backward_slice(BackwardContext& b) {
    const SliceGradOp attrs{b.attrs().as<SliceOp>().begin, b.in(SliceOp::x).numel()};
    b.give(SliceOp::x, run(op::slice_grad, {b.dy()}, attrs, {b.into(SliceOp::x)})[0]);
}

void backward_concat(BackwardContext& b) {
    int64_t begin = 0;
    for (int i = 0; i < kMaxInputs && b.in(i).defined(); ++i) {
        const int64_t channels = channels_of(b.in(i));
        if (b.wants(i)) b.give(i, run(op::concat_grad, {b.dy()}, ConcatGradOp{begin, channels}, {b.into(i)})[0]);
        begin += channels;
    }
}

void backward_dropout(BackwardContext& b) {
    b.give(DropoutOp::x, run(op::dropout, {b.dy(), b.in(DropoutOp::seed)}, b.attrs(), {b.into(DropoutOp::x)})[0]);
}

constexpr Argument kX[] = {{"x"}};
constexpr Argument kDy[] = {{"dy"}};
constexpr Argument kActivationGrad[] = {
    {"dy"}, {"from"}, fused("a", Type::activation), RG_FUSED_NORM(a), fused("b", Type::activation), RG_FUSED_NORM(b)};
constexpr Argument kAdd[] = {{"a"}, {"b"}, RG_FUSED_NORM(a), RG_FUSED_NORM(b)};
constexpr Argument kScale[] = {{"x"}, {"factor", Type::precise, Presence::optional}};
constexpr Argument kTwo[] = {{"a"}, {"b"}};
constexpr Argument kSum[] = {{"x"}, fused("times", Type::activation)};
constexpr Argument another(const char* name) { return {name, Type::activation, Presence::optional}; }
constexpr Argument kConcat[] = {{"x0"},        another("x1"), another("x2"),  another("x3"),
                                another("x4"), another("x5"), another("x6"),  another("x7"),
                                another("x8"), another("x9"), another("x10"), another("x11")};
static_assert(std::size(kConcat) == kMaxInputs);
constexpr Argument kDropout[] = {{"x"}, {"seed", Type::i32}};

} // namespace

bool is_fusible(Activation activation) {
    return activation.kind < (context().device ? Activation::leaky_relu : Activation::gelu);
}

void expect_fusible(const char* op, Activation activation) {
#define RG_NAME(name, ...) #name,
    constexpr const char* kNames[] = {RG_ACTIVATIONS(RG_NAME)};
#undef RG_NAME
    RG_CHECK(is_fusible(activation), op, ": expected an activation that can be part of other ops, got ",
             kNames[activation.kind], "; call activation()");
    expect_slope(op, activation.slope);
}

RG_ROW(activation, .inputs = kX, .may_be = {1 << ActivationOp::x}, .images = input_bit(ActivationOp::x) | output_bit(0),
       .backward = backward_activation, .saves_for = saved_by_activation);
RG_ROW(activation_grad, .inputs = kActivationGrad, .outputs = 5,
       .may_be = {1 << ActivationGradOp::dy | 1 << ActivationGradOp::from});
RG_ROW(add, .inputs = kAdd, .may_be = {1 << AddOp::a | 1 << AddOp::b},
       .images = input_bit(AddOp::a) | input_bit(AddOp::b) | output_bit(0), .backward = backward_add);
RG_ROW(binary, .inputs = kTwo, .may_be = {1 << BinaryOp::a | 1 << BinaryOp::b},
       .images = input_bit(BinaryOp::a) | input_bit(BinaryOp::b) | output_bit(0), .backward = backward_binary,
       .saves_for = saved_by_binary);
RG_ROW(sum, .inputs = kSum, .backward = backward_sum, .flops = flops_sum);
RG_ROW(sum_grad, .inputs = kDy);
RG_ROW(scale, .inputs = kScale, .may_be = {1 << ScaleOp::x}, .images = input_bit(ScaleOp::x) | output_bit(0),
       .backward = backward_scale, .saves = input_bit(ScaleOp::x) | input_bit(ScaleOp::factor));
RG_ROW(cast, .inputs = kX, .may_be = {1 << CastOp::x}, .images = input_bit(CastOp::x) | output_bit(0),
       .backward = backward_cast);
RG_ROW(slice, .inputs = kX, .backward = backward_slice);
RG_ROW(slice_grad, .inputs = kDy);
RG_ROW(concat, .inputs = kConcat, .backward = backward_concat);
RG_ROW(concat_grad, .inputs = kDy);
RG_ROW(dropout, .inputs = kDropout, .may_be = {1 << DropoutOp::x}, .backward = backward_dropout,
       .saves = input_bit(DropoutOp::seed));

// ---- functions -----------------------------------------------------------------------------------------------------

namespace {

bool smaller(const Tensor& a, const Tensor& b) { return a.defined() && b.defined() && a.numel() < b.numel(); }

Tensor commutative(Binary kind, const Tensor& a, const Tensor& b) {
    return smaller(a, b) ? commutative(kind, b, a) : run(op::binary, {a, b}, BinaryOp{kind})[0];
}

} // namespace

Tensor activation(const Tensor& x, Activation activation) {
    return activation.kind ? run(op::activation, {x}, ActivationOp{activation})[0] : x;
}

// Here and not in norm.cpp, since it may run an activation.
Tensor batch_norm(const Tensor& x, const Tensor& stats, const Tensor& gamma, const Tensor& beta, BatchNorm options) {
    const Activation last = is_fusible(options.activation) ? Activation() : std::exchange(options.activation, {});
    return activation(run(op::batch_norm, {x, stats, gamma, beta}, BatchNormOp{options})[0], last);
}

Tensor relu(const Tensor& x) { return activation(x, Activation::relu); }
Tensor leaky_relu(const Tensor& x, float slope) { return activation(x, {Activation::leaky_relu, slope}); }
Tensor relu6(const Tensor& x) { return activation(x, Activation::relu6); }
Tensor gelu(const Tensor& x) { return activation(x, Activation::gelu); }
Tensor silu(const Tensor& x) { return activation(x, Activation::silu); }
Tensor hardswish(const Tensor& x) { return activation(x, Activation::hardswish); }
Tensor sigmoid(const Tensor& x) { return activation(x, Activation::sigmoid); }
Tensor hardsigmoid(const Tensor& x) { return activation(x, Activation::hardsigmoid); }
Tensor tanh(const Tensor& x) { return activation(x, Activation::tanh); }

Shape aligned(const Shape& small, const Shape& large) {
    if (small.rank() == 2 && large.rank() == 4) return {small[0], 1, 1, small[1]};
    std::vector<int64_t> extents(size_t(std::max(0, large.rank() - small.rank())), 1);
    extents.insert(extents.end(), small.extents().begin(), small.extents().end());
    return Shape(extents);
}

Repeats repeats_of(const char* op, const Shape& small, const Shape& large) {
    const Shape shape = aligned(small, large);
    Repeats r;
    bool fits = shape.rank() == large.rank(), repeated = false;
    for (int i = 0; fits && i < large.rank(); ++i) {
        if (large[i] != 1 && shape[i] == 1) {
            fits = !repeated || r.period == 1; // no other axis lies between two that repeat
            repeated = true;
            r.repeats *= large[i];
        } else {
            fits = shape[i] == large[i];
            (repeated ? r.period : r.groups) *= large[i];
        }
    }
    RG_CHECK(fits, op, ": expected a shape that repeats along neighbouring axes of ", large.str(), ", got ",
             small.str(), "; reshape one of them");
    return repeated ? r : Repeats{1, 1, large.numel()};
}

Tensor add(const Tensor& a, const Tensor& b) {
    const bool same = a.defined() && b.defined() && a.shape() == b.shape();
    return same ? run(op::add, {a, b})[0] : commutative(Binary::add, a, b);
}
Tensor sub(const Tensor& a, const Tensor& b) {
    return smaller(a, b) ? scale(sub(b, a), -1) : run(op::binary, {a, b}, BinaryOp{Binary::sub})[0];
}
Tensor mul(const Tensor& a, const Tensor& b) { return commutative(Binary::mul, a, b); }
Tensor sum(const Tensor& x) { return run(op::sum, {x})[0]; }
Tensor mean(const Tensor& x) { return run(op::sum, {x}, SumOp{.mean = true})[0]; }

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

Tensor concat(std::initializer_list<Tensor> tensors) { return concat(std::span(tensors.begin(), tensors.size())); }

Tensor concat(std::span<const Tensor> tensors) {
    RG_CHECK(!tensors.empty() && tensors.size() <= kMaxInputs, "concat: expected 1 to ", kMaxInputs, " tensors, got ",
             tensors.size(), "; concatenate them in groups");
    for (size_t i = 0; i < tensors.size(); ++i) RG_CHECK(tensors[i].defined(), "concat: x", i, " is undefined");
    return run(op::concat, tensors)[0];
}

Tensor upsample(const Tensor& x, int64_t factor) {
    expect_image("upsample", "x", x);
    RG_CHECK(factor >= 1 && factor <= kMaxInputs, "upsample: expected a factor of 1 to ", kMaxInputs, ", got ", factor);
    const int64_t n = x.extent(0), h = x.extent(1), w = x.extent(2), c = x.extent(3);
    // concat() over channels repeats the channels of each pixel. In memory, this is the pixel, repeated along its row.
    // In the same way, concat() over [n h 1 w*factor*c] repeats whole rows. bf16 is widened to f32 first, since the
    // gradient of a pixel is a sum over its copies.
    const Tensor exact = x.dtype() == DType::bf16 ? cast(x, DType::f32) : x;
    const std::vector<Tensor> pixels(size_t(factor), exact);
    const Tensor wide = concat(pixels).reshape({n, h, 1, w * factor * c});
    const std::vector<Tensor> rows(size_t(factor), wide);
    const Tensor y = concat(rows).reshape({n, h * factor, w * factor, c});
    return x.dtype() == DType::bf16 ? cast(y, DType::bf16) : y;
}

Tensor dropout(const Tensor& x, float probability, const Tensor& seed, uint32_t stream) {
    return run(op::dropout, {x, seed}, DropoutOp{probability, stream})[0];
}

Tensor seed_tensor(uint64_t seed) {
    const int32_t halves[] = {int32_t(uint32_t(seed)), int32_t(uint32_t(seed >> 32))};
    return Tensor::of<int32_t>({2}, halves);
}

// ---- reference -----------------------------------------------------------------------------------------------------

namespace ref {

namespace {

// The functions that RG_ACTIVATIONS uses, on double.
double of(double constant) { return constant; }
double larger(double a, double b) { return a > b ? a : b; }
double smaller(double a, double b) { return a < b ? a : b; }
double hyperbolic_tangent(double x) { return std::tanh(x); }
double normal_cdf(double x) { return 0.5 * std::erfc(-x * std::sqrt(0.5)); }
double normal_pdf(double x) { return std::exp(-0.5 * x * x) * std::sqrt(0.5 / std::numbers::pi); }

} // namespace

double activated(Activation a, double x) {
    const double slope = double(a.slope);
    switch (a.kind) {
#define RG_CASE(name, from, value, ...)                                                                                \
    case Activation::name: return value;
        RG_ACTIVATIONS(RG_CASE)
#undef RG_CASE
    }
    return x;
}

double activation_gradient(Activation a, double dy, double from) {
    const double slope = double(a.slope), x = from, y = from;
    switch (a.kind) {
#define RG_CASE(name, from, value, gradient)                                                                           \
    case Activation::name: return gradient;
        RG_ACTIVATIONS(RG_CASE)
#undef RG_CASE
    }
    return dy;
}

void activation(const Call& call) {
    Values x = read(call.in[ActivationOp::x]);
    for (double& v : x) v = activated(call.attrs.as<ActivationOp>().activation, v);
    write(call.out[0], x);
}

void activation_grad(const Call& call) {
    using O = ActivationGradOp;
    const auto& o = call.attrs.as<O>();
    Values dx = read(call.in[O::dy]);
    const Values from = read(call.in[O::from]);
    for (size_t i = 0; i < dx.size(); ++i) dx[i] = activation_gradient(o.activation, dx[i], from[i]);
    write(call.out[O::dx], dx);
    const Operand a = o.a_norm.operand(call.in), b = o.b_norm.operand(call.in);
    if (a.x.defined()) norm_sums(call.out[O::dx], a, call.out[O::a_dgamma], call.out[O::a_dbeta]);
    if (b.x.defined()) norm_sums(call.out[O::dx], b, call.out[O::b_dgamma], call.out[O::b_dbeta]);
}

void add(const Call& call) {
    using O = AddOp;
    const auto& o = call.attrs.as<O>();
    Values sum = read(normalised(o.a_norm.operand(call.in)));
    const Values b = read(normalised(o.b_norm.operand(call.in)));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = activated(o.activation, sum[i] + b[i]);
    write(call.out[0], sum);
}

namespace {

/// Calls f(index in `large`, index in `small`) for all elements of `large`.
template <class F>
void each_repeated(const Tensor& small, const Tensor& large, F f) {
    const Repeats r = repeats_of("reference", small.shape(), large.shape());
    for (int64_t i = 0; i < large.numel(); ++i)
        f(size_t(i), size_t(i / (r.repeats * r.period) * r.period + i % r.period));
}

double combined(Binary kind, double a, double b) {
    switch (kind) {
#define RG_CASE(name, value, ...)                                                                                      \
    case Binary::name: return value;
        RG_BINARIES(RG_CASE)
#undef RG_CASE
    }
    return a;
}

/// Returns the number of elements of `large` for each element of `small`, or 1 if there are none.
double repeats(const Tensor& small, const Tensor& large) {
    return double(std::max<int64_t>(1, repeats_of("reference", small.shape(), large.shape()).repeats));
}

} // namespace

void binary(const Call& call) {
    using O = BinaryOp;
    Values a = read(call.in[O::a]);
    const Values b = read(call.in[O::b]);
    each_repeated(call.in[O::b], call.in[O::a],
                  [&](size_t i, size_t j) { a[i] = combined(call.attrs.as<O>().kind, a[i], b[j]); });
    write(call.out[0], a);
}

void sum(const Call& call) {
    const Tensor &in = call.in[SumOp::x], &times = call.in[SumOp::times], &y = call.out[0];
    const Values x = read(in), factors = times.defined() ? read(times) : Values(x.size(), 1);
    Values sums(size_t(y.numel()));
    each_repeated(y, in, [&](size_t i, size_t j) { sums[j] += x[i] * factors[i]; });
    for (double& v : sums) v /= call.attrs.as<SumOp>().mean ? repeats(y, in) : 1;
    write(y, sums);
}

void sum_grad(const Call& call) {
    const Tensor &small = call.in[SumGradOp::dy], &large = call.out[0];
    const Values dy = read(small);
    Values dx(size_t(large.numel()));
    const double divisor = call.attrs.as<SumGradOp>().mean ? repeats(small, large) : 1;
    each_repeated(small, large, [&](size_t i, size_t j) { dx[i] = dy[j] / divisor; });
    write(large, dx);
}

void scale(const Call& call) {
    Values x = read(call.in[ScaleOp::x]);
    const Tensor& factor = call.in[ScaleOp::factor];
    const double times = factor.defined() ? read(factor)[0] : double(call.attrs.as<ScaleOp>().constant);
    for (double& v : x) v *= times;
    write(call.out[0], x);
}

void cast(const Call& call) {
    const Tensor converted = call.in[CastOp::x].to(call.attrs.as<CastOp>().to);
    if (converted.bytes()) std::copy_n(converted.bytes_data(), converted.bytes(), call.out[0].bytes_data());
}

// These ops only copy bytes of elements of any type.
void slice(const Call& call) { cpu::slice(call); }
void slice_grad(const Call& call) { cpu::slice_grad(call); }
void concat(const Call& call) { cpu::concat(call); }
void concat_grad(const Call& call) { cpu::concat_grad(call); }

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
