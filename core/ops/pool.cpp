// The ops of pooling: their rows in the op table (core/op.h) and their reference implementations.
#include "core/ops/pool.h"

#include "core/ops/reference.h"
#include "core/ops/rules.h"

namespace rg {

RG_POOL_OPS(RG_DECLARE_KERNELS)

namespace {

std::string str(const PerAxis& axes) { return cat(axes.h, "x", axes.w); }

/// Returns the shape of the pooled x.
Shape pooled(const char* op, const Shape& x, const Pool& pool) {
    RG_CHECK(pool.pad.h < pool.window.h && pool.pad.w < pool.window.w, op, ": expected less padding than the window ",
             str(pool.window), ", got ", str(pool.pad));
    return {x[0], window_count(op, x[1], pool.window.h, pool.stride.h, pool.pad.h),
            window_count(op, x[2], pool.window.w, pool.stride.w, pool.pad.w), x[3]};
}

/// Throws Error if the windows leave out more rows or columns at the end of x than between two windows.
void expect_covered(const char* op, const Shape& x, const Pool& pool) {
    const auto left = [](int64_t extent, int64_t window, int64_t stride, int64_t pad) {
        const int64_t gap = std::max<int64_t>(0, stride - window); // pixels between windows; also allowed at the end
        return std::max<int64_t>(0, (extent + 2 * pad - window) % stride - pad - gap);
    };
    const int64_t rows = left(x[1], pool.window.h, pool.stride.h, pool.pad.h),
                  columns = left(x[2], pool.window.w, pool.stride.w, pool.pad.w);
    RG_CHECK(rows == 0 && columns == 0, op, ": expected windows of ", str(pool.window), " with stride ",
             str(pool.stride), " to cover x, got ", rows, " rows and ", columns, " columns left over of ", x.str(),
             "; Pool::drop_rest leaves them out");
}

/// Checks the arguments of max or average pooling. Returns the shape and the type of the result.
OutputSpec infer_pooled(const char* op, In in, const Attrs& attrs) {
    const auto& [pool, x_norm] = attrs.as<Pool2dOp>();
    const Tensor& x = in[Pool2dOp::x];
    expect_image(op, "x", x);
    expect_norm(op, x.extent(3), x_norm.given(in));
    const OutputSpec y{pooled(op, x.shape(), pool), x.dtype()};
    if (!pool.drop_rest) expect_covered(op, x.shape(), pool);
    return y;
}

OutputSpecs infer_max_pool2d(In in, const Attrs& attrs) {
    const PerAxis window = attrs.as<Pool2dOp>().pool.window;
    RG_CHECK(window.h * window.w <= 256, "max_pool2d: expected windows of at most 256 pixels, got ", str(window));
    const OutputSpec y = infer_pooled("max_pool2d", in, attrs);
    return {{y, {y.shape, DType::u8}}};
}

OutputSpecs infer_avg_pool2d(In in, const Attrs& attrs) { return {{infer_pooled("avg_pool2d", in, attrs)}}; }

OutputSpecs infer_pool_grad(const char* op, In in, const Attrs& attrs) {
    using O = Pool2dGradOp;
    const auto& a = attrs.as<O>();
    const Tensor &dy = in[O::dy], &x = in[O::x];
    expect_rank(op, "dy", dy, 4);
    const Shape dx{dy.extent(0), a.height, a.width, dy.extent(3)};
    expect_shape(op, "dy", dy, pooled(op, dx, a.pool));
    if (x.defined()) {
        expect_shape(op, "x", x, dx);
        expect_norm(op, dx[3], a.x_norm.given(in));
    }
    const OutputSpec sums{x.defined() ? Shape{dx[3]} : Shape{0}, precise(dy)};
    return {{{dx, dy.dtype()}, sums, sums, {Shape{0}, precise(dy)}}};
}

OutputSpecs infer_max_pool2d_grad(In in, const Attrs& attrs) {
    expect_shape("max_pool2d_grad", "positions", in[Pool2dGradOp::positions], in[Pool2dGradOp::dy].shape());
    return infer_pool_grad("max_pool2d_grad", in, attrs);
}

OutputSpecs infer_avg_pool2d_grad(In in, const Attrs& attrs) { return infer_pool_grad("avg_pool2d_grad", in, attrs); }

/// Runs the op `grad` on `in`, and gives the result to `b` as the gradient of x.
void backward_pool(BackwardContext& b, Op grad, std::initializer_list<Tensor> in) {
    const Tensor& x = b.in(Pool2dOp::x);
    const Pool2dGradOp attrs{b.attrs().as<Pool2dOp>().pool, x.extent(1), x.extent(2)};
    b.give(Pool2dOp::x, run(grad, in, attrs, {b.into(Pool2dOp::x)})[0]);
}

void backward_max_pool2d(BackwardContext& b) {
    backward_pool(b, op::max_pool2d_grad, {b.dy(), {}, {}, {}, {}, b.out(Pool2dOp::positions)});
}

void backward_avg_pool2d(BackwardContext& b) { backward_pool(b, op::avg_pool2d_grad, {b.dy()}); }

constexpr Argument kPool2d[] = {{"x"}, RG_FUSED_NORM(x)};
constexpr Argument kPool2dGrad[] = {{"dy"}, fused("x", Type::activation), RG_FUSED_NORM(x), {"positions", Type::u8}};

} // namespace

RG_ROW(max_pool2d, .inputs = kPool2d, .outputs = 2,
       .images = input_bit(Pool2dOp::x) | output_bit(Pool2dOp::y) | output_bit(Pool2dOp::positions),
       .backward = backward_max_pool2d, .saves = output_bit(Pool2dOp::positions));
RG_ROW(max_pool2d_grad, .inputs = kPool2dGrad, .outputs = 4);
RG_ROW(avg_pool2d, .inputs = kPool2d, .images = input_bit(Pool2dOp::x) | output_bit(Pool2dOp::y),
       .backward = backward_avg_pool2d);
RG_ROW(avg_pool2d_grad, .inputs = std::span(kPool2dGrad).first(Pool2dGradOp::positions), .outputs = 4);

// ---- functions -----------------------------------------------------------------------------------------------------

Tensor max_pool2d(const Tensor& x, const Pool& pool) { return run(op::max_pool2d, {x}, Pool2dOp{pool})[0]; }

Tensor avg_pool2d(const Tensor& x, const Pool& pool) { return run(op::avg_pool2d, {x}, Pool2dOp{pool})[0]; }

Tensor global_avg_pool(const Tensor& x) {
    RG_CHECK(x.defined(), "global_avg_pool: expected x, got an undefined tensor");
    expect_image("global_avg_pool", "x", x);
    return avg_pool2d(x, {.window = {x.extent(1), x.extent(2)}}).reshape({x.extent(0), x.extent(3)});
}

// ---- reference -----------------------------------------------------------------------------------------------------

namespace ref {

namespace {

/// Calls f(y index, x index, position in the window) for every element of every window, except those in the padding.
template <class F>
void for_each_window(const Shape& x, const Shape& y, const Pool& pool, F f) {
    const Index4 xi(x), yi(y);
    for (int64_t n = 0; n < y[0]; ++n)
        for (int64_t p = 0; p < y[1]; ++p)
            for (int64_t q = 0; q < y[2]; ++q)
                for (int64_t c = 0; c < y[3]; ++c)
                    for (int64_t r = 0; r < pool.window.h; ++r)
                        for (int64_t s = 0; s < pool.window.w; ++s) {
                            const int64_t row = p * pool.stride.h - pool.pad.h + r,
                                          column = q * pool.stride.w - pool.pad.w + s;
                            if (row < 0 || row >= x[1] || column < 0 || column >= x[2]) continue;
                            f(yi(n, p, q, c), xi(n, row, column, c), r * pool.window.w + s);
                        }
}

/// Returns the number by which average pooling divides, for each value of y.
Values divisors(const Shape& x, const Shape& y, const Pool& pool) {
    Values counts(size_t(y.numel()), pool.count_pad ? double(pool.window.h * pool.window.w) : 0.0);
    if (!pool.count_pad) for_each_window(x, y, pool, [&](size_t yi, size_t, int64_t) { ++counts[yi]; });
    return counts;
}

/// Computes the sums x_dgamma and x_dbeta of Pool2dGradOp, if x is defined.
void sum_gradient(const Call& call) {
    using O = Pool2dGradOp;
    const Operand x = call.attrs.as<O>().x_norm.operand(call.in);
    if (x.x.defined()) norm_sums(call.out[O::dx], x, call.out[O::x_dgamma], call.out[O::x_dbeta]);
}

} // namespace

void max_pool2d(const Call& call) {
    using O = Pool2dOp;
    const auto& a = call.attrs.as<O>();
    const Values x = read(normalised(a.x_norm.operand(call.in)));
    Values y(size_t(call.out[O::y].numel()), 0.0), position(y.size(), -1.0);
    for_each_window(call.in[O::x].shape(), call.out[O::y].shape(), a.pool, [&](size_t yi, size_t xi, int64_t tap) {
        // A NaN counts as the largest value, so that pooling does not hide a diverged network.
        if (position[yi] < 0 || x[xi] > y[yi] || (std::isnan(x[xi]) && !std::isnan(y[yi])))
            y[yi] = x[xi], position[yi] = double(tap);
    });
    write(call.out[O::y], y);
    write(call.out[O::positions], position);
}

void max_pool2d_grad(const Call& call) {
    using O = Pool2dGradOp;
    const auto& a = call.attrs.as<O>();
    const Values dy = read(call.in[O::dy]), position = read(call.in[O::positions]);
    Values dx(size_t(call.out[O::dx].numel()), 0.0);
    for_each_window(call.out[O::dx].shape(), call.in[O::dy].shape(), a.pool, [&](size_t yi, size_t xi, int64_t tap) {
        if (double(tap) == position[yi]) dx[xi] += dy[yi];
    });
    write(call.out[O::dx], dx);
    sum_gradient(call);
}

void avg_pool2d(const Call& call) {
    using O = Pool2dOp;
    const auto& a = call.attrs.as<O>();
    const Values x = read(normalised(a.x_norm.operand(call.in)));
    const Values divisor = divisors(call.in[O::x].shape(), call.out[0].shape(), a.pool);
    Values y(divisor.size(), 0.0);
    for_each_window(call.in[O::x].shape(), call.out[0].shape(), a.pool,
                    [&](size_t yi, size_t xi, int64_t) { y[yi] += x[xi] / divisor[yi]; });
    write(call.out[0], y);
}

void avg_pool2d_grad(const Call& call) {
    using O = Pool2dGradOp;
    const auto& a = call.attrs.as<O>();
    const Values dy = read(call.in[O::dy]);
    const Values divisor = divisors(call.out[O::dx].shape(), call.in[O::dy].shape(), a.pool);
    Values dx(size_t(call.out[O::dx].numel()), 0.0);
    for_each_window(call.out[O::dx].shape(), call.in[O::dy].shape(), a.pool,
                    [&](size_t yi, size_t xi, int64_t) { dx[xi] += dy[yi] / divisor[yi]; });
    write(call.out[O::dx], dx);
    sum_gradient(call);
}

} // namespace ref

} // namespace rg
