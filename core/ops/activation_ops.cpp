// Activations and dropout: their rows in the op table (core/op.h) and their reference implementations. Also the
// reference of ops on two tensors (RG_BINARIES), since both lists of activation.h use the same functions of double.
#include "core/ops/elements.h"

#include "core/context.h"
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

void backward_dropout(BackwardContext& b) {
    b.give(DropoutOp::x, run(op::dropout, {b.dy(), b.in(DropoutOp::seed)}, b.attrs(), {b.into(DropoutOp::x)})[0]);
}

constexpr Argument kActivation[] = {{"x"}};
constexpr Argument kActivationGrad[] = {
    {"dy"}, {"from"}, fused("a", Type::activation), RG_FUSED_NORM(a), fused("b", Type::activation), RG_FUSED_NORM(b)};
constexpr Argument kDropout[] = {{"x"}, {"seed", Type::i32}};

} // namespace

bool is_fusible(Activation activation, bool on_device) {
    return activation.kind < (on_device ? Activation::leaky_relu : Activation::gelu);
}
bool is_fusible(Activation activation) { return is_fusible(activation, context().device); }

void expect_fusible(const char* op, Activation activation) {
#define RG_NAME(name, ...) #name,
    constexpr const char* kNames[] = {RG_ACTIVATIONS(RG_NAME)};
#undef RG_NAME
    RG_CHECK(is_fusible(activation), op, ": expected an activation that can be part of other ops, got ",
             kNames[activation.kind], "; call activation()");
    expect_slope(op, activation.slope);
}

void expect_no_activation(const char* op, const BatchNormTensors& norm) {
    RG_CHECK(!norm.options.activation.kind, op, ": expected batch norms without an activation, got one with one");
}

RG_ROW(activation, .inputs = kActivation, .may_be = {1 << ActivationOp::x},
       .images = input_bit(ActivationOp::x) | output_bit(0), .backward = backward_activation,
       .saves_for = saved_by_activation);
RG_ROW(activation_grad, .inputs = kActivationGrad, .outputs = 5,
       .may_be = {1 << ActivationGradOp::dy | 1 << ActivationGradOp::from});
RG_ROW(dropout, .inputs = kDropout, .may_be = {1 << DropoutOp::x}, .backward = backward_dropout,
       .saves = input_bit(DropoutOp::seed));

// ---- functions -----------------------------------------------------------------------------------------------------

Tensor activation(const Tensor& x, Activation activation) {
    return activation.kind ? run(op::activation, {x}, ActivationOp{activation})[0] : x;
}

// Defined here and not in norm.cpp, because it may run activation().
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
Tensor softplus(const Tensor& x) { return activation(x, Activation::softplus); }
Tensor exp(const Tensor& x) { return activation(x, Activation::exp); }
Tensor log(const Tensor& x) { return activation(x, Activation::log); }
Tensor sqrt(const Tensor& x) { return activation(x, Activation::sqrt); }
Tensor abs(const Tensor& x) { return activation(x, Activation::abs); }
Tensor square(const Tensor& x) { return activation(x, Activation::square); }
Tensor reciprocal(const Tensor& x) { return activation(x, Activation::reciprocal); }

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

// The functions that the lists of activation.h use, on double.
double of(double constant) { return constant; }
double larger(double a, double b) { return a > b ? a : b; }
double smaller(double a, double b) { return a < b ? a : b; }
double absolute(double x) { return std::abs(x); }
double square_root(double x) { return std::sqrt(x); }
double exponential(double x) { return std::exp(x); }
double logarithm(double x) { return std::log(x); }
double logarithm_of_one_plus(double x) { return std::log1p(x); }
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

double combined(Binary kind, double a, double b) {
    switch (kind) {
#define RG_CASE(name, value, ...)                                                                                      \
    case Binary::name: return value;
        RG_BINARIES(RG_CASE)
#undef RG_CASE
    }
    return a;
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
