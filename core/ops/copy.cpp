// Ops that copy elements, to another type or shape: their rows in the op table (core/op.h) and their reference
// implementations.
#include "core/ops/elements.h"

#include "core/ops/reference.h"
#include "core/ops/rules.h"

namespace rg {

RG_ELEMENT_OPS(RG_DECLARE_KERNELS)

namespace {

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

constexpr Argument kX[] = {{"x"}};
constexpr Argument kDy[] = {{"dy"}};
constexpr Argument another(const char* name) { return {name, Type::activation, Presence::optional}; }
constexpr Argument kConcat[] = {{"x0"},        another("x1"), another("x2"),  another("x3"),
                                another("x4"), another("x5"), another("x6"),  another("x7"),
                                another("x8"), another("x9"), another("x10"), another("x11")};
static_assert(std::size(kConcat) == kMaxInputs);

} // namespace

RG_ROW(cast, .inputs = kX, .may_be = {1 << CastOp::x}, .images = input_bit(CastOp::x) | output_bit(0),
       .backward = backward_cast);
RG_ROW(slice, .inputs = kX, .backward = backward_slice);
RG_ROW(slice_grad, .inputs = kDy);
RG_ROW(concat, .inputs = kConcat, .backward = backward_concat);
RG_ROW(concat_grad, .inputs = kDy);

// ---- functions -----------------------------------------------------------------------------------------------------

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

// ---- reference -----------------------------------------------------------------------------------------------------

namespace ref {

void cast(const Call& call) {
    const Tensor converted = call.in[CastOp::x].to(call.attrs.as<CastOp>().to);
    if (converted.bytes()) std::copy_n(converted.bytes_data(), converted.bytes(), call.out[0].bytes_data());
}

// These ops only copy bytes of elements of any type.
void slice(const Call& call) { cpu::slice(call); }
void slice_grad(const Call& call) { cpu::slice_grad(call); }
void concat(const Call& call) { cpu::concat(call); }
void concat_grad(const Call& call) { cpu::concat_grad(call); }

} // namespace ref

} // namespace rg
