// The op that takes views of images: its row in the op table (core/op.h) and its reference implementation.
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
    const int64_t n = in[O::indices].extent(0), c = images.extent(3);
    RG_CHECK(c <= kMaxImageChannels, "augment: expected images of 1 to ", kMaxImageChannels, " channels, got ",
             images.shape().str());
    expect_shape("augment", "views", in[O::views], {n, kViewNumbers});
    expect_shape("augment", "statistics", in[O::statistics], {2, c});
    RG_CHECK(window.height >= 1 && window.width >= 1, "augment: expected a window of at least 1 x 1, got ",
             window.height, " x ", window.width);
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

namespace {

/// An image that can be read beyond its sides. If `reflect` is set, it continues mirrored. Otherwise at() repeats the
/// edge pixels, and at_position() does so for half a pixel only: farther out it returns black.
struct Picture {
    const double* pixels;
    int64_t height, width, channels;
    bool reflect;

    double at(int64_t row, int64_t column, int64_t channel) const {
        const auto inside = [&](int64_t i, int64_t extent) {
            while (reflect && extent > 1 && (i < 0 || i >= extent)) i = i < 0 ? -i : 2 * (extent - 1) - i;
            return std::clamp<int64_t>(i, 0, extent - 1);
        };
        return pixels[(inside(row, height) * width + inside(column, width)) * channels + channel];
    }

    /// Returns the bilinear mean at a position, rounded to an integer. Returns 0 (black) if the image is not mirrored
    /// and the position is more than half a pixel beyond the centres of its edge pixels.
    double at_position(double y, double x, int64_t channel) const {
        const bool outside = y < -0.5 || x < -0.5 || y >= double(height) - 0.5 || x >= double(width) - 0.5;
        if (outside && !reflect) return 0;
        const auto row = int64_t(std::floor(y)), column = int64_t(std::floor(x));
        const double down = y - std::floor(y), right = x - std::floor(x);
        const double above = at(row, column, channel) * (1 - right) + at(row, column + 1, channel) * right,
                     below = at(row + 1, column, channel) * (1 - right) + at(row + 1, column + 1, channel) * right;
        return std::floor(above * (1 - down) + below * down + 0.5);
    }
};

} // namespace

void ref::augment(const Call& call) {
    using O = AugmentOp;
    const Tensor &images = call.in[O::images], &y = call.out[0];
    const Values pixels = read(images), index = read(call.in[O::indices]), views = read(call.in[O::views]),
                 stats = read(call.in[O::statistics]);
    const Index4 y_index(y.shape());
    const int64_t channels = images.extent(3), image_size = images.extent(1) * images.extent(2) * channels;
    Values out(size_t(y.numel()));
    for (int64_t n = 0; n < y.extent(0); ++n) {
        const double* const v = &views[size_t(kViewNumbers * n)];
        const Picture picture{&pixels[size_t(int64_t(index[size_t(n)]) * image_size)], images.extent(1),
                              images.extent(2), channels, call.attrs.as<O>().window.reflect};
        for (int64_t h = 0; h < y.extent(1); ++h)
            for (int64_t w = 0; w < y.extent(2); ++w)
                for (int64_t c = 0; c < channels; ++c) {
                    const double row = (v[0] + double(h) * v[1] + double(w) * v[2]) / double(kPixel),
                                 column = (v[3] + double(h) * v[4] + double(w) * v[5]) / double(kPixel);
                    const double byte = picture.at_position(row, column, c);
                    out[y_index(n, h, w, c)] = (byte / 255 - stats[size_t(c)]) / stats[size_t(channels + c)];
                }
    }
    write(y, out);
}

} // namespace rg
