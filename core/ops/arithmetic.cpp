// Arithmetic and sums: their rows in the op table (core/op.h) and their reference implementations.
#include "core/ops/elements.h"

#include "core/ops/reference.h"
#include "core/ops/rules.h"

namespace rg {

RG_ELEMENT_OPS(RG_DECLARE_KERNELS)

namespace {

OutputSpecs infer_add(In in, const Attrs& attrs) {
    using O = AddOp;
    const auto& o = attrs.as<O>();
    expect_shape("add", "b", in[O::b], in[O::a].shape());
    expect_fusible("add", o.activation);
    if (o.activation.kind) expect_image("add", "a", in[O::a]);
    for (const BatchNormTensors& norm : {o.a_norm.given(in), o.b_norm.given(in)}) {
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

void backward_add(BackwardContext& b) {
    RG_CHECK(!b.attrs().as<AddOp>().activation.kind,
             "add: expected no activation where gradients are recorded, got one; ", "call activation()");
    for (int i : {AddOp::a, AddOp::b})
        if (b.wants(i)) b.give(i, b.dy());
}

uint32_t saved_by_binary(const Attrs& attrs) {
    using O = BinaryOp;
    switch (attrs.as<O>().kind) {
    case Binary::add:
    case Binary::sub: return 0;
    case Binary::div: return input_bit(O::b) | output_bit(0);
    default: return input_bit(O::a) | input_bit(O::b);
    }
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
    case Binary::div: {
        const Tensor da = run(op::binary, {dy, y}, b.attrs(), {b.into(O::a)})[0];
        return give_a(da), give_b(da, b.out(0), -1);
    }
    case Binary::maximum:
    case Binary::minimum: { // The larger element is (a + b + |a - b|) / 2, and the smaller one (a + b - |a - b|) / 2.
        const Tensor half = scale(dy, 0.5f);
        const Tensor other = run(op::activation_grad, {half, sub(x, y)}, ActivationGradOp{Activation::abs})[0];
        const auto gradient = [&](bool of_larger) { return of_larger ? add(half, other) : sub(half, other); };
        const bool maximum = b.attrs().as<O>().kind == Binary::maximum;
        if (b.wants(O::a)) give_a(gradient(maximum));
        if (b.wants(O::b)) give_b(gradient(!maximum));
    }
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
    const ScaleOp attrs{b.attrs().as<O>().constant};
    if (b.wants(O::x)) b.give(O::x, run(op::scale, {b.dy(), b.in(O::factor)}, attrs, {b.into(O::x)})[0]);
    if (b.wants(O::factor)) b.give(O::factor, run(op::sum, {b.dy(), b.in(O::x)}, {}, {b.into(O::factor)})[0]);
}

constexpr Argument kAdd[] = {{"a"}, {"b"}, RG_FUSED_NORM(a), RG_FUSED_NORM(b)};
constexpr Argument kScale[] = {{"x"}, {"factor", Type::precise, Presence::optional}};
constexpr Argument kTwo[] = {{"a"}, {"b"}};
constexpr Argument kSum[] = {{"x"}, fused("times", Type::activation)};
constexpr Argument kSumGrad[] = {{"dy"}};

} // namespace

RG_ROW(add, .inputs = kAdd, .may_be = {1 << AddOp::a | 1 << AddOp::b},
       .images = input_bit(AddOp::a) | input_bit(AddOp::b) | output_bit(0), .backward = backward_add);
RG_ROW(binary, .inputs = kTwo, .may_be = {1 << BinaryOp::a | 1 << BinaryOp::b},
       .images = input_bit(BinaryOp::a) | input_bit(BinaryOp::b) | output_bit(0), .backward = backward_binary,
       .saves_for = saved_by_binary);
RG_ROW(sum, .inputs = kSum, .backward = backward_sum, .flops = flops_sum);
RG_ROW(sum_grad, .inputs = kSumGrad);
RG_ROW(scale, .inputs = kScale, .may_be = {1 << ScaleOp::x}, .images = input_bit(ScaleOp::x) | output_bit(0),
       .backward = backward_scale, .saves = input_bit(ScaleOp::x) | input_bit(ScaleOp::factor));

// ---- functions -----------------------------------------------------------------------------------------------------

namespace {

/// Returns true if the elements of a may repeat, and those of b not, or if a only lacks extents of 1 that b has. An
/// empty extent counts as 2 elements, since those of an extent of 1 may repeat along it.
bool smaller(const Tensor& a, const Tensor& b) {
    const auto elements = [](const Tensor& t) {
        double product = 1;
        for (const int64_t extent : t.shape().extents()) product *= extent ? double(extent) : 2;
        return std::pair(product, t.shape().rank());
    };
    return a.defined() && b.defined() && elements(a) < elements(b);
}

Tensor commutative(Binary kind, const Tensor& a, const Tensor& b) {
    return smaller(a, b) ? commutative(kind, b, a) : run(op::binary, {a, b}, BinaryOp{kind})[0];
}

/// Returns the sums or the means over some axes. Each op takes axes that are neighbours.
Tensor over_axes(const Tensor& x, std::initializer_list<int> axes, bool mean) {
    const char* const op = mean ? "mean" : "sum";
    RG_CHECK(x.defined(), op, ": x is undefined");
    const int rank = x.shape().rank();
    std::vector<int64_t> extents(x.shape().extents().begin(), x.shape().extents().end());
    std::vector<bool> chosen(extents.size());
    for (const int axis : axes) {
        RG_CHECK(axis >= -rank && axis < rank, op, ": expected axes in [", -rank, ", ", rank, "), got ", axis);
        chosen[size_t(axis < 0 ? axis + rank : axis)] = true;
    }
    Tensor y = x;
    for (size_t i = extents.size(); i-- > 0;) {
        if (!chosen[i]) continue;
        extents[i] = 1;
        if (i == 0 || !chosen[i - 1]) y = run(op::sum, {y}, SumOp{mean, Shape(extents)})[0];
    }
    return y;
}

} // namespace

Shape aligned(const Shape& small, const Shape& large) {
    if (small.rank() == 2 && large.rank() == 4) return {small[0], 1, 1, small[1]};
    std::array<int64_t, 4> extents{1, 1, 1, 1}; // no vector, since kernels call this
    const int rank = std::max(small.rank(), large.rank());
    std::ranges::copy(small.extents(), extents.begin() + rank - small.rank());
    return Shape(std::span(extents).first(size_t(rank)));
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
Tensor div(const Tensor& a, const Tensor& b) {
    return smaller(a, b) ? mul(reciprocal(b), a) : run(op::binary, {a, b}, BinaryOp{Binary::div})[0];
}
Tensor maximum(const Tensor& a, const Tensor& b) { return commutative(Binary::maximum, a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return commutative(Binary::minimum, a, b); }
Tensor clamp(const Tensor& x, float low, float high) {
    RG_CHECK(low <= high, "clamp: expected low <= high, got ", low, " and ", high, "; exchange them");
    const auto bound = [&](float value) { return Tensor::constant({}, double(value), x.dtype()); };
    return minimum(maximum(x, bound(low)), bound(high));
}

Tensor sum(const Tensor& x) { return run(op::sum, {x})[0]; }
Tensor mean(const Tensor& x) { return run(op::sum, {x}, SumOp{.mean = true})[0]; }
Tensor sum(const Tensor& x, std::initializer_list<int> axes) { return over_axes(x, axes, false); }
Tensor mean(const Tensor& x, std::initializer_list<int> axes) { return over_axes(x, axes, true); }

Tensor scale(const Tensor& x, float factor) { return run(op::scale, {x}, ScaleOp{factor})[0]; }
Tensor shift(const Tensor& x, float by) { return run(op::scale, {x}, ScaleOp{.shift = by})[0]; }
Tensor operator-(float a, const Tensor& b) { return run(op::scale, {b}, ScaleOp{-1, a})[0]; }

Tensor scale(const Tensor& x, const Tensor& factor) {
    RG_CHECK(factor.defined(), "scale: factor is undefined");
    return run(op::scale, {x, factor})[0];
}

// ---- reference -----------------------------------------------------------------------------------------------------

namespace ref {

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
    const auto& a = call.attrs.as<ScaleOp>();
    const double times = factor.defined() ? read(factor)[0] : double(a.constant);
    for (double& v : x) v = v * times + double(a.shift);
    write(call.out[0], x);
}

} // namespace ref

} // namespace rg
