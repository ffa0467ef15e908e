// Views of images: the row of the op and its reference.
#include "ringgrad/core/ops/augment.h"

#include "ringgrad/core/ops/reference.h"
#include "ringgrad/core/ops/rules.h"

namespace rg {

RG_AUGMENT_OPS(RG_DECLARE_KERNELS)

namespace {

OutputSpecs infer_augment(In in, const Attrs& attrs) {
    using O = AugmentOp;
    const Window& window = attrs.as<O>().window;
    const Tensor& images = in[O::images];
    expect_image("augment", "images", images);
    expect_rank("augment", "indices", in[O::indices], 1);
    const int64_t n = in[O::indices].extent(0), h = images.extent(1), w = images.extent(2), c = images.extent(3);
    RG_CHECK(c <= kMaxImageChannels, "augment: expected images of 1 to ", kMaxImageChannels, " channels, got ",
             images.shape().str());
    expect_shape("augment", "views", in[O::views], {n, 3});
    expect_shape("augment", "statistics", in[O::statistics], {2, c});
    RG_CHECK(window.height >= 1 && window.height <= h && window.width >= 1 && window.width <= w,
             "augment: a window of ", window.height, " x ", window.width, " in images of ", h, " x ", w);
    RG_CHECK(window.dtype == DType::f32 || window.dtype == DType::bf16, "augment: gives f32 or bf16, not ",
             name_of(window.dtype));
    return {{{{n, window.height, window.width, c}, window.dtype}}};
}

void check_indices(const Call& call) {
    check_below(call.in[AugmentOp::images].extent(0), call.in[AugmentOp::indices], "augment: index");
}

constexpr Argument kAugment[] = {
    {"images", Type::u8}, {"indices", Type::i32}, {"views", Type::i32}, {"statistics", Type::f32}};

} // namespace

RG_ROW(augment, .inputs = kAugment, .check = check_indices);

Tensor augment(const Tensor& images, const Tensor& indices, const Tensor& views, const Tensor& statistics,
               const Window& window) {
    return run(op::augment, {images, indices, views, statistics}, AugmentOp{window})[0];
}

void ref::augment(const Call& call) {
    using O = AugmentOp;
    const bool reflect = call.attrs.as<O>().window.reflect;
    const Tensor &images = call.in[O::images], &y = call.out[0];
    const Values pixels = read(images), index = read(call.in[O::indices]), view = read(call.in[O::views]),
                 stats = read(call.in[O::statistics]);
    const Index4 image_index(images.shape()), y_index(y.shape());
    const int64_t height = images.extent(1), width = images.extent(2), channels = images.extent(3);
    Values out(size_t(y.numel()));
    for (int64_t n = 0; n < y.extent(0); ++n)
        for (int64_t h = 0; h < y.extent(1); ++h)
            for (int64_t w = 0; w < y.extent(2); ++w)
                for (int64_t c = 0; c < channels; ++c) {
                    const double* const v = &view[size_t(3 * n)];
                    int64_t row = int64_t(v[1]) + h, column = int64_t(v[2]) + (v[0] != 0 ? y.extent(2) - 1 - w : w);
                    const bool outside = row < 0 || row >= height || column < 0 || column >= width;
                    row = height - 1 - std::abs(height - 1 - std::abs(row)); // mirrored once at the edge
                    column = width - 1 - std::abs(width - 1 - std::abs(column));
                    const double byte = outside && !reflect
                                            ? 0
                                            : pixels[image_index(int64_t(index[size_t(n)]), row, column, c)];
                    out[y_index(n, h, w, c)] = (byte / 255 - stats[size_t(c)]) / stats[size_t(channels + c)];
                }
    write(y, out);
}

} // namespace rg
