// The ops that update parameters: their rows in the op table (core/op.h) and their reference implementations.
#include "core/ops/optimizer.h"

#include "core/context.h"
#include "core/ops/conv.h"
#include "core/ops/elements.h"
#include "core/ops/reference.h"
#include "core/ops/rules.h"

namespace rg {

RG_OPTIMIZER_OPS(RG_DECLARE_KERNELS)

namespace {

/// Checks that all buffers have the same shape. Returns the outputs: the update changes all buffers except the last in
/// place.
OutputSpecs infer_buffers(const OpRow& row, In buffers) {
    OutputSpecs out;
    for (size_t i = 0; i < buffers.size(); ++i) {
        expect_shape(row.name, row.inputs[i].name, buffers[i], buffers[0].shape());
        if (i + 1 < buffers.size()) out[i] = {buffers[0].shape(), buffers[0].dtype()};
    }
    return out;
}

void expect_scalar_if_defined(const char* op, const char* name, const Tensor& t) {
    if (t.defined()) expect_shape(op, name, t, {});
}

/// Checks non_finite_at, norm, rates and decays, which sgdm_update and adam_update have in this order.
void check_inputs(const char* op, const Shape& buffer, In inputs, float max_norm) {
    expect_scalar_if_defined(op, "non_finite_at", inputs[0]);
    expect_scalar_if_defined(op, "norm", inputs[1]);
    RG_CHECK(max_norm >= 0 && (max_norm == 0 || inputs[1].defined()), op,
             ": expected the norm of the gradients with a max_norm of ", max_norm,
             ", got none; see first_non_finite()");
    if (inputs[2].defined()) expect_shape(op, "rates", inputs[2], buffer);
    if (inputs[3].defined()) expect_shape(op, "decays", inputs[3], buffer);
}

OutputSpecs infer_sgdm_update(In in, const Attrs& attrs) {
    using O = SgdmUpdateOp;
    expect_shape("sgdm_update", "lr", in[O::lr], {1});
    check_inputs("sgdm_update", in[0].shape(), in.subspan(O::non_finite_at), attrs.as<O>().max_norm);
    return infer_buffers(rows::sgdm_update, in.first(O::gradients + 1));
}

OutputSpecs infer_adam_update(In in, const Attrs& attrs) {
    using O = AdamUpdateOp;
    const auto& a = attrs.as<O>();
    RG_CHECK(a.beta1 >= 0 && a.beta1 < 1 && a.beta2 >= 0 && a.beta2 < 1,
             "adam_update: beta1 and beta2 lie in [0, 1), got ", a.beta1, " and ", a.beta2);
    expect_shape("adam_update", "lr_and_step", in[O::lr_and_step], {2});
    check_inputs("adam_update", in[0].shape(), in.subspan(O::non_finite_at), a.max_norm);
    return infer_buffers(rows::adam_update, in.first(O::gradients + 1));
}

OutputSpecs infer_rescale(In in, const Attrs&) {
    using O = RescaleOp;
    const Tensor& x = in[O::x];
    expect_shape("rescale", "norm", in[O::norm], {});
    RG_CHECK(in[O::step].defined() == in[O::lr].defined(), "rescale: expected both step and lr, or neither, got one");
    if (in[O::step].defined()) {
        expect_shape("rescale", "step", in[O::step], x.shape());
        expect_shape("rescale", "lr", in[O::lr], {1});
    }
    expect_scalar_if_defined("rescale", "non_finite_at", in[O::non_finite_at]);
    return {{{x.shape(), x.dtype()}}};
}

OutputSpecs infer_average_update(In in, const Attrs& attrs) {
    const double keep = attrs.as<AverageUpdateOp>().keep;
    RG_CHECK(keep >= 0 && keep < 1, "average_update: keep lies in [0, 1), got ", keep);
    return infer_buffers(rows::average_update, in);
}

OutputSpecs infer_first_non_finite(In in, const Attrs& attrs) {
    using O = FirstNonFiniteOp;
    RG_CHECK(in[O::values].numel() <= INT32_MAX, "first_non_finite: at most 2^31 - 1 values, got ",
             in[O::values].numel());
    expect_scalar_if_defined("first_non_finite", "loss", in[O::loss]);
    return {{{{}, DType::i32}, {attrs.as<O>().with_norm ? Shape{} : Shape{0}, in[O::values].dtype()}}};
}

double flops_first_non_finite(const Call& call) {
    const bool with_norm = call.attrs.as<FirstNonFiniteOp>().with_norm;
    return (with_norm ? 3.0 : 1.0) * double(call.in[FirstNonFiniteOp::values].numel());
}

constexpr Argument kSgdm[] = {{"parameters", Type::precise},
                              {"velocity", Type::precise},
                              {"gradients", Type::precise},
                              {"lr", Type::f32},
                              {"non_finite_at", Type::i32, Presence::optional},
                              {"norm", Type::precise, Presence::optional},
                              {"rates", Type::f32, Presence::optional},
                              {"decays", Type::f32, Presence::optional}};
constexpr Argument kAdam[] = {{"parameters", Type::precise},
                              {"m", Type::precise},
                              {"v", Type::precise},
                              {"gradients", Type::precise},
                              {"lr_and_step", Type::f32},
                              {"non_finite_at", Type::i32, Presence::optional},
                              {"norm", Type::precise, Presence::optional},
                              {"rates", Type::f32, Presence::optional},
                              {"decays", Type::f32, Presence::optional}};
constexpr Argument kRescale[] = {{"x", Type::precise},
                                 {"norm", Type::precise},
                                 {"step", Type::precise, Presence::optional},
                                 {"lr", Type::f32, Presence::optional},
                                 {"non_finite_at", Type::i32, Presence::optional}};
constexpr Argument kAverage[] = {{"average", Type::precise}, {"parameters", Type::precise}};
constexpr Argument kFirstNonFinite[] = {{"values", Type::precise}, {"loss", Type::precise, Presence::optional}};

} // namespace

RG_ROW(sgdm_update, .inputs = kSgdm, .outputs = 2, .in_place = 2);
RG_ROW(adam_update, .inputs = kAdam, .outputs = 3, .in_place = 3);
RG_ROW(rescale, .inputs = kRescale, .may_be = {1 << RescaleOp::x});
RG_ROW(average_update, .inputs = kAverage, .in_place = 1);
RG_ROW(first_non_finite, .inputs = kFirstNonFinite, .outputs = 2, .flops = flops_first_non_finite);

// ---- functions -----------------------------------------------------------------------------------------------------

void sgdm_update(const Tensor& parameters, const Tensor& velocity, const Tensor& gradients, const SgdmOptions& o,
                 const Tensor& lr, const UpdateInputs& in) {
    run(op::sgdm_update, {parameters, velocity, gradients, lr, in.non_finite_at, in.norm, in.rates, in.decays},
        SgdmUpdateOp{o.momentum, o.weight_decay, o.nesterov, o.max_norm}, {parameters, velocity});
}
void sgdm_update(const Tensor& parameters, const Tensor& velocity, const Tensor& gradients, const SgdmOptions& o) {
    RG_CHECK(!Scope::current().trace,
             "sgdm_update: the learning rate of a traced function has to be a tensor, or each replay has the same");
    alignas(64) thread_local std::byte memory[64]; // so that no step allocates host memory
    thread_local const Tensor kHost = Tensor::borrow(memory, {1});
    kHost.data<float>()[0] = o.lr;
    const Tensor lr = context().device ? Tensor::empty({1}) : kHost;
    if (context().device && !DryRun::active()) lr.copy_from(kHost);
    sgdm_update(parameters, velocity, gradients, o, lr);
}

void adam_update(const Tensor& parameters, const Tensor& m, const Tensor& v, const Tensor& gradients,
                 const AdamOptions& o, const Tensor& lr_and_step, const UpdateInputs& in) {
    run(op::adam_update, {parameters, m, v, gradients, lr_and_step, in.non_finite_at, in.norm, in.rates, in.decays},
        AdamUpdateOp{o.beta1, o.beta2, o.epsilon, o.weight_decay, o.decoupled, o.max_norm}, {parameters, m, v});
}

Tensor orthogonalised(const Tensor& x) {
    RG_CHECK(x.defined() && x.shape().rank() == 2 && x.numel() > 0, "orthogonalised: expected a matrix, got ",
             x.defined() ? x.shape().str() : "an undefined tensor");
    using Grad = Conv2dGradOp;
    const int64_t k = x.extent(0), m = x.extent(1), n = std::min(k, m);
    const bool wide = k <= m;
    // Returns a product without a transpose of its second factor, as a gradient of linear(images, filters): dy^T images
    // if part.filters is set, else dy filters.
    const auto gradient = [&](const Tensor& dy, const Tensor& images, const Tensor& filters, Grad part) {
        const auto out = run(op::conv2d_grad,
                             {dy.reshape({k, 1, 1, dy.extent(1)}), images.reshape({k, 1, 1, m}),
                              filters.reshape({filters.extent(0), 1, 1, m})},
                             part);
        return out[part.filters ? Grad::dw : Grad::dx];
    };
    Tensor y = rescale(x, run(op::first_non_finite, {x}, FirstNonFiniteOp{true})[FirstNonFiniteOp::norm], 1);
    for (int step = 0; step < 3; ++step) {
        // The smaller one of y y^T and y^T y. For y^T y, conv2d_grad takes only the shape from its filters, not their
        // values.
        const Tensor square =
            wide ? linear(y, y) : gradient(y, y, slice(y, 0, {n, n}), {.conv = {}, .data = false}).reshape({n, n});
        const Tensor sum = add(scale(square, -4.7750f), scale(linear(square, square), 2.0315f));
        const Tensor product =
            wide ? gradient(sum, y, y, {.conv = {}, .filters = false}).reshape(x.shape()) : linear(y, sum);
        y = add(scale(y, 3.4445f), product);
    }
    return y;
}

Tensor rescale(const Tensor& x, const Tensor& norm, float length) {
    return run(op::rescale, {x, norm}, RescaleOp{.length = length})[0];
}
void rescale_update(const Tensor& p, const Tensor& norm, float length, const Tensor& step, float rate, const Tensor& lr,
                    const Tensor& non_finite_at) {
    run(op::rescale, {p, norm, step, lr, non_finite_at}, RescaleOp{length, rate}, {p});
}

void average_update(const Tensor& average, const Tensor& parameters, double keep) {
    run(op::average_update, {average, parameters}, AverageUpdateOp{keep}, {average});
}

Tensor first_non_finite(const Tensor& values, const Tensor& loss, const Tensor& non_finite_at, const Tensor& norm) {
    // Without a norm, the second output has no elements. For f32, a static tensor avoids allocating it in every step.
    static const Tensor kNoNorm = Tensor::empty_on_host({0});
    const Tensor& to = norm.defined() || values.dtype() != DType::f32 ? norm : kNoNorm;
    return run(op::first_non_finite, {values, loss}, FirstNonFiniteOp{norm.defined()}, {non_finite_at, to})[0];
}

// ---- reference -----------------------------------------------------------------------------------------------------

namespace ref {

namespace {

/// The factors that an update applies to g, lr and weight_decay. `in` has non_finite_at, norm, rates and decays.
struct Factors {
    Factors(std::span<const Tensor> in, float max_norm)
        : clip(max_norm > 0 ? clip_factor(read(in[1])[0], double(max_norm)) : 1),
          rates(in[2].defined() ? read(in[2]) : Values()),
          decays(in[3].defined() ? read(in[3]) : Values()) {}
    double rate(size_t i) const { return rates.empty() ? 1 : rates[i]; }
    double decay(size_t i) const { return decays.empty() ? 1 : decays[i]; }
    double clip;
    Values rates, decays;
};

} // namespace

void sgdm_update(const Call& call) {
    using O = SgdmUpdateOp;
    const auto& a = call.attrs.as<O>();
    Values p = read(call.in[O::parameters]), v = read(call.in[O::velocity]);
    const Values gradient = read(call.in[O::gradients]);
    const double lr = read(call.in[O::lr])[0], momentum = a.momentum;
    const Factors factors(call.in.subspan(O::non_finite_at), a.max_norm);
    for (size_t i = 0; i < p.size() && !found_non_finite(call.in[O::non_finite_at]); ++i) {
        const double g = factors.clip * gradient[i] + factors.decay(i) * double(a.weight_decay) * p[i];
        v[i] = momentum * v[i] + g;
        p[i] -= factors.rate(i) * lr * (a.nesterov ? g + momentum * v[i] : v[i]);
    }
    write(call.out[0], p);
    write(call.out[1], v);
}

void adam_update(const Call& call) {
    using O = AdamUpdateOp;
    const auto& a = call.attrs.as<O>();
    Values p = read(call.in[O::parameters]), m = read(call.in[O::m]), v = read(call.in[O::v]);
    const Values gradient = read(call.in[O::gradients]), lr_and_step = read(call.in[O::lr_and_step]);
    const double lr = lr_and_step[0], step = lr_and_step[1];
    const Factors factors(call.in.subspan(O::non_finite_at), a.max_norm);
    for (size_t i = 0; i < p.size() && !found_non_finite(call.in[O::non_finite_at]); ++i) {
        const double decay = factors.decay(i) * double(a.weight_decay), rate = factors.rate(i) * lr;
        const double g = factors.clip * gradient[i] + (a.decoupled ? 0 : decay * p[i]);
        if (a.decoupled) p[i] *= 1 - rate * decay;
        m[i] = a.beta1 * m[i] + (1 - a.beta1) * g;
        v[i] = a.beta2 * v[i] + (1 - a.beta2) * g * g;
        const double mean = m[i] / (1 - std::pow(a.beta1, step)), square = v[i] / (1 - std::pow(a.beta2, step));
        p[i] -= rate * mean / (std::sqrt(square) + double(a.epsilon));
    }
    write(call.out[0], p);
    write(call.out[1], m);
    write(call.out[2], v);
}

void rescale(const Call& call) {
    using O = RescaleOp;
    const auto& a = call.attrs.as<O>();
    Values x = read(call.in[O::x]);
    if (found_non_finite(call.in[O::non_finite_at])) return write(call.out[0], x);
    const double factor = double(a.length) / (read(call.in[O::norm])[0] + double(O::kEpsilon));
    for (double& value : x) value *= factor;
    if (call.in[O::step].defined()) {
        const Values step = read(call.in[O::step]);
        const double rate = double(a.rate) * read(call.in[O::lr])[0];
        for (size_t i = 0; i < x.size(); ++i) x[i] -= rate * step[i];
    }
    write(call.out[0], x);
}

void first_non_finite(const Call& call) {
    using O = FirstNonFiniteOp;
    Values x = read(call.in[O::values]);
    if (call.in[O::loss].defined()) x.push_back(read(call.in[O::loss])[0]);
    size_t i = 0;
    while (i < x.size() && std::isfinite(x[i])) ++i;
    write(call.out[0], {i < x.size() ? double(i) : -1});
    if (!call.attrs.as<O>().with_norm) return;
    double squares = 0;
    for (const double value : read(call.in[O::values])) squares += value * value;
    write(call.out[1], {std::sqrt(squares)});
}

void average_update(const Call& call) {
    using O = AverageUpdateOp;
    Values average = read(call.in[O::average]);
    const Values p = read(call.in[O::parameters]);
    const double keep = call.attrs.as<O>().keep;
    for (size_t i = 0; i < p.size(); ++i) average[i] = keep * average[i] + (1 - keep) * p[i];
    write(call.out[0], average);
}

} // namespace ref

} // namespace rg
