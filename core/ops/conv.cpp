// The ops of convolution: their rows in the op table (core/op.h) and their reference implementations.
#include "core/ops/conv.h"

#include "core/context.h"
#include "core/ops/reference.h"
#include "core/ops/rules.h"

namespace rg {

RG_CONV_OPS(RG_DECLARE_KERNELS)

namespace {

/// Returns the shape of the convolution of x with w.
Shape convolved(const char* op, const Tensor& x, const Tensor& w, const Conv& conv) {
    expect_image(op, "x", x);
    expect_rank(op, "w", w, 4);
    RG_CHECK(w.extent(0) >= 1, op, ": w has k=0");
    const int64_t c = x.extent(3), k = w.extent(0), groups = conv.groups;
    RG_CHECK(groups >= 1 && c % groups == 0 && k % groups == 0, op, ": expected groups that divide c=", c,
             " of x and k=", k, " of w, got ", groups);
    RG_CHECK(w.extent(3) == c / groups, op, ": w has c=", w.extent(3), ", x has c=", c,
             groups > 1 ? cat(" in ", groups, " groups") : "");
    return {x.extent(0), window_count(op, x.extent(1), w.extent(1), conv.stride.h, conv.pad.h, conv.dilation.h),
            window_count(op, x.extent(2), w.extent(2), conv.stride.w, conv.pad.w, conv.dilation.w), k};
}

/// Throws Error if a convolution that does not take fused steps has one of the inputs `fused`, which only they use.
void expect_plain_groups(const char* op, const Conv& conv, const Tensor& w, In fused) {
    for (const Tensor& t : fused)
        RG_CHECK(!t.defined() || takes_fused_steps(conv, w), op, ": expected no fused steps with groups=", conv.groups,
                 ", got one; run them as ops of their own");
}

OutputSpecs infer_conv2d(In in, const Attrs& attrs) {
    using O = Conv2dOp;
    const auto& a = attrs.as<O>();
    const Tensor &x = in[O::x], &w = in[O::w];
    const Shape y = convolved("conv2d", x, w, a.conv);
    expect_plain_groups("conv2d", a.conv, w, in.subspan(O::x_stats));
    const int64_t k = w.extent(0);
    if (in[O::bias].defined()) expect_shape("conv2d", "b", in[O::bias], {k});
    expect_norm("conv2d", x.extent(3), a.x_norm.given(in));
    const bool normalised = expect_norm("conv2d", k, a.y_norm.given(in));
    RG_CHECK(!(normalised && a.with_stats), "conv2d: expected a plain result for its statistics, got a normalised one");
    // In a plan for a device, core/fuse.cpp changes the shapes of stats, new_running and x_sums afterwards.
    const Shape none{0};
    return {{{y, x.dtype()}, {a.with_stats ? Shape{2, k} : none, precise(x)}, {none, precise(x)}}};
}

OutputSpecs infer_conv2d_grad(In in, const Attrs& attrs) {
    using O = Conv2dGradOp;
    const auto& a = attrs.as<O>();
    const Tensor &x = in[O::x], &w = in[O::w], &y = in[O::y];
    const Shape dy = convolved("conv2d_grad", x, w, a.conv);
    expect_plain_groups("conv2d_grad", a.conv, w, in.subspan(O::addend));
    expect_shape("conv2d_grad", "dy", in[O::dy], dy);
    if (in[O::addend].defined()) expect_shape("conv2d_grad", "addend", in[O::addend], x.shape());
    const bool x_norm = expect_norm("conv2d_grad", x.extent(3), a.x_norm.given(in));
    if (y.defined()) {
        expect_shape("conv2d_grad", "y", y, dy);
        expect_norm("conv2d_grad", y.extent(3), a.y_norm.given(in));
        expect_shape("conv2d_grad", "y_sums", in[O::y_sums], {2, w.extent(0)});
    }
    RG_CHECK(!x_norm || y.defined(), "conv2d_grad: expected the batch norm of y beside that of x, got only that of x");
    RG_CHECK(!y.defined() || a.filters, "conv2d_grad: expected `filters` with the batch norm of y, got only `data`");
    RG_CHECK(!a.with_sums || (a.data && x_norm), "conv2d_grad: expected `data` and a batch norm of x for its sums");
    const DType type = precise(x);
    const Shape none{0}, sums = a.with_sums ? Shape{x.extent(3)} : none;
    return {{{a.filters ? w.shape() : none, type},
             {a.filters ? Shape{w.extent(0)} : none, type},
             {a.data ? x.shape() : none, x.dtype()},
             {sums, type},
             {sums, type},
             {none, type}}};
}

void backward_conv2d(BackwardContext& b) {
    using O = Conv2dOp;
    using Grad = Conv2dGradOp;
    const bool filters = b.wants(O::w) || b.wants(O::bias), data = b.wants(O::x);
    const auto out =
        run(op::conv2d_grad, {b.dy(), b.in(O::x), b.in(O::w)},
            Grad{.conv = b.attrs().as<O>().conv, .filters = filters, .data = data},
            {filters ? b.into(O::w) : Tensor(), filters ? b.into(O::bias) : Tensor(), data ? b.into(O::x) : Tensor()});
    if (b.wants(O::w)) b.give(O::w, out[Grad::dw]);
    if (b.wants(O::bias)) b.give(O::bias, out[Grad::dbias]);
    if (data) b.give(O::x, out[Grad::dx]);
}

/// Returns the number of floating-point operations of a convolution, where a multiply-add counts as 2. `y` is the
/// number of values in the result.
double conv_flops(int64_t y, const Tensor& w) {
    return 2.0 * double(y) * double(w.extent(1)) * double(w.extent(2)) * double(w.extent(3));
}
double flops_conv2d(const Call& call) { return conv_flops(call.out[Conv2dOp::y].numel(), call.in[Conv2dOp::w]); }
double flops_conv2d_grad(const Call& call) {
    const auto& a = call.attrs.as<Conv2dGradOp>();
    return (a.filters + a.data) * conv_flops(call.in[Conv2dGradOp::dy].numel(), call.in[Conv2dGradOp::w]);
}

constexpr Argument kConv2d[] = {
    {"x"},           {"w", Type::precise}, {"b", Type::precise, Presence::optional}, RG_FUSED_NORM(x), RG_FUSED_NORM(y),
    fused("running")};
constexpr Argument kConv2dGrad[] = {{"dy"},
                                    {"x"},
                                    {"w", Type::precise},
                                    fused("addend", Type::activation),
                                    fused("y", Type::activation),
                                    RG_FUSED_NORM(y),
                                    fused("y_sums"),
                                    RG_FUSED_NORM(x)};

} // namespace

RG_ROW(conv2d, .inputs = kConv2d, .outputs = 3, .may_be = {0, 0, 1 << Conv2dOp::running},
       .images = input_bit(Conv2dOp::x) | output_bit(Conv2dOp::y), .backward = backward_conv2d,
       .saves = input_bit(Conv2dOp::x) | input_bit(Conv2dOp::w), .flops = flops_conv2d);
RG_ROW(conv2d_grad, .inputs = kConv2dGrad, .outputs = 6, .flops = flops_conv2d_grad);

// ---- functions -----------------------------------------------------------------------------------------------------

Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& b, Conv conv) {
    return run(op::conv2d, {x, w, b}, Conv2dOp{conv})[Conv2dOp::y];
}

WithStats conv2d_stats(const Tensor& x, const Tensor& w, const Tensor& b, Conv conv) {
    const auto out = run(op::conv2d, {x, w, b}, Conv2dOp{.conv = conv, .with_stats = true});
    return {out[Conv2dOp::y], out[Conv2dOp::stats]};
}

bool takes_fused_steps(const Conv& conv, const Tensor& w) {
    return conv.groups == 1 || (w.extent(0) == conv.groups && w.extent(3) == 1 && !context().device);
}

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b) {
    // Runs a 1x1 convolution whose pixels are the samples. Each image gets as many samples as the largest divisor of n
    // up to 16, so that a large n gives many images to divide among the threads. But if that divisor is below 4, one
    // image gets all samples.
    RG_CHECK(x.defined() && w.defined(), "linear: expected x and w, got an undefined tensor");
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

// ---- reference -----------------------------------------------------------------------------------------------------

namespace ref {

namespace {

/// Returns the filters, rounded to bf16 if the activations x are bf16.
Values read_filters(const Tensor& w, const Tensor& x) { return read(x.dtype() == DType::bf16 ? w.to(DType::bf16) : w); }

/// Calls f(y index, x index, w index, count) for all products y[n p q k] += x[n h v c] * w[k r s c] of a convolution.
/// (p, q) is a pixel of the result, (h, v) a pixel of x, and (r, s) a pixel of the filter. A call is for the `count`
/// consecutive channels c from these indices on. In a convolution in groups, c counts the channels of filter k's group.
template <class F>
void for_each_product(const Shape& x, const Shape& w, const Shape& y, const Conv& conv, F f) {
    const Index4 xi(x), wi(w), yi(y);
    const int64_t filters = y[3] / conv.groups; // filters in each group
    for (int64_t n = 0; n < y[0]; ++n)
        for (int64_t p = 0; p < y[1]; ++p)
            for (int64_t q = 0; q < y[2]; ++q)
                for (int64_t k = 0; k < y[3]; ++k)
                    for (int64_t r = 0; r < w[1]; ++r)
                        for (int64_t s = 0; s < w[2]; ++s) {
                            const int64_t h = p * conv.stride.h - conv.pad.h + r * conv.dilation.h,
                                          v = q * conv.stride.w - conv.pad.w + s * conv.dilation.w;
                            if (h < 0 || h >= x[1] || v < 0 || v >= x[2]) continue;
                            f(yi(n, p, q, k), xi(n, h, v, k / filters * w[3]), wi(k, r, s, 0), size_t(w[3]));
                        }
}

/// Adds factor * from[i] to to[i] for all i < count. The arrays do not overlap.
void add_scaled(double factor, const double* __restrict from, double* __restrict to, size_t count) {
    for (size_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

} // namespace

void conv2d(const Call& call) {
    using O = Conv2dOp;
    const auto& a = call.attrs.as<O>();
    const Tensor &w = call.in[O::w], &b = call.in[O::bias], &y = call.out[O::y];
    const Tensor x = normalised(a.x_norm.operand(call.in));
    const Shape shape = convolved("conv2d", x, w, a.conv);
    const Values x_values = read(x), w_values = read_filters(w, x);
    Values result(size_t(shape.numel()), 0.0);
    if (b.defined()) {
        const Values bias = read(b);
        for (size_t i = 0; i < result.size(); ++i) result[i] = bias[i % bias.size()];
    }
    for_each_product(x.shape(), w.shape(), shape, a.conv, [&](size_t yi, size_t xi, size_t wi, size_t count) {
        double sum = result[yi];
        for (size_t c = 0; c < count; ++c) sum += x_values[xi + c] * w_values[wi + c];
        result[yi] = sum;
    });
    if (a.with_stats) write(call.out[O::stats], moments(result, size_t(shape[3])));
    const BatchNormTensors y_norm = a.y_norm.given(call.in);
    if (!y_norm) return write(y, result);
    const Tensor plain = Tensor::empty_on_host(shape, x.dtype());
    write(plain, result);
    write(y, read(normalised({plain, y_norm})));
}

void conv2d_grad(const Call& call) {
    using O = Conv2dGradOp;
    const auto& a = call.attrs.as<O>();
    const Tensor &w = call.in[O::w], &y = call.in[O::y], &addend = call.in[O::addend];
    Tensor dy = call.in[O::dy];
    if (y.defined()) {
        dy = Tensor::empty_on_host(y.shape(), y.dtype());
        norm_grad(call.in[O::dy], a.y_norm.operand(call.in), call.in[O::y_sums], dy);
    }
    const Values dy_values = read(dy);
    if (a.filters) {
        const Tensor x = normalised(a.x_norm.operand(call.in));
        const Values x_values = read(x);
        Values dw(size_t(w.numel()), 0.0), dbias(size_t(w.extent(0)), 0.0);
        for_each_product(x.shape(), w.shape(), dy.shape(), a.conv, [&](size_t yi, size_t xi, size_t wi, size_t count) {
            add_scaled(dy_values[yi], &x_values[xi], &dw[wi], count);
        });
        for (size_t i = 0; i < dy_values.size(); ++i) dbias[i % dbias.size()] += dy_values[i];
        write(call.out[O::dw], dw);
        write(call.out[O::dbias], dbias);
    }
    if (!a.data) return;
    const Tensor& dx = call.out[O::dx];
    const Values w_values = read_filters(w, dy);
    Values result(size_t(dx.numel()), 0.0);
    for_each_product(dx.shape(), w.shape(), dy.shape(), a.conv, [&](size_t yi, size_t xi, size_t wi, size_t count) {
        add_scaled(dy_values[yi], &w_values[wi], &result[xi], count);
    });
    if (addend.defined()) {
        const Values values = read(addend);
        for (size_t i = 0; i < result.size(); ++i) result[i] += values[i];
    }
    write(dx, result);
    if (a.with_sums) norm_sums(dx, a.x_norm.operand(call.in), call.out[O::x_dgamma], call.out[O::x_dbeta]);
}

} // namespace ref

} // namespace rg
