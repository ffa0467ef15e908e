// The op that takes views of images: its row in the op table (core/op.h) and its reference implementation.
#include "core/ops/augment.h"

#include "core/ops/reference.h"
#include "core/ops/rules.h"

namespace rg {

RG_AUGMENT_OPS(RG_DECLARE_KERNELS)

namespace {

OutputSpecs infer_augment(In in, const Attrs& attrs) {
    using O = AugmentOp;
    const Window& window = attrs.as<O>().window;
    const Tensor& images = in[O::images];
    expect_image("augment", "images", images);
    const Tensor &indices = in[O::indices], &views = in[O::views];
    const bool pairs = indices.shape().rank() == 2;
    if (!pairs) expect_rank("augment", "indices", indices, 1);
    const int64_t n = indices.extent(0), c = images.extent(3);
    if (pairs) expect_shape("augment", "indices", indices, {n, 2});
    RG_CHECK(c <= kMaxImageChannels, "augment: expected images of 1 to ", kMaxImageChannels, " channels, got ",
             images.shape().str());
    if (pairs)
        expect_shape("augment", "views", views, {n, 2 * kViewNumbers});
    else if (views.shape() != Shape{n, kPositionNumbers})
        expect_shape("augment", "views", views, {n, kViewNumbers});
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
struct BorderedImage {
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

double rounded_byte(double value) { return std::clamp(std::floor(value + 0.5), 0.0, 255.0); }

/// Returns the bytes [height width c] of the pixels that a view shows of an image, with its changes of colours. `v`
/// holds the kViewNumbers numbers of the view.
ref::Values bytes_of(const BorderedImage& image, const double* v, int64_t height, int64_t width) {
    const int64_t c = image.channels;
    ref::Values bytes;
    for (int64_t h = 0; h < height; ++h)
        for (int64_t w = 0; w < width; ++w)
            for (int64_t channel = 0; channel < c; ++channel)
                bytes.push_back(image.at_position((v[0] + double(h) * v[1] + double(w) * v[2]) / double(kPixel),
                                                  (v[3] + double(h) * v[4] + double(w) * v[5]) / double(kPixel),
                                                  channel));
    const double brightness = v[6] / double(kFactor), contrast = v[7] / double(kFactor),
                 saturation = v[8] / double(kFactor);
    const auto grey = [&](size_t pixel) {
        const double* const b = &bytes[pixel * size_t(c)];
        double sum = 0;
        for (int64_t channel = 0; channel < c; ++channel) sum += b[channel];
        return rounded_byte(c == 3 ? (19595 * b[0] + 38470 * b[1] + 7471 * b[2]) / 65536 : sum / double(c));
    };
    const size_t pixels = bytes.size() / size_t(c);
    for (double& byte : bytes) byte = rounded_byte(brightness * byte);
    double sum = 0;
    for (size_t i = 0; i < pixels; ++i) sum += grey(i);
    const double mean = rounded_byte(sum / double(pixels));
    for (double& byte : bytes) byte = rounded_byte(mean + contrast * (byte - mean));
    for (size_t i = 0; i < pixels; ++i) {
        const double from = grey(i);
        for (size_t k = i * size_t(c); k < (i + 1) * size_t(c); ++k)
            bytes[k] = rounded_byte(from + saturation * (bytes[k] - from));
    }
    return bytes;
}

} // namespace

void ref::augment(const Call& call) {
    using O = AugmentOp;
    const Tensor &images = call.in[O::images], &indices = call.in[O::indices], &y = call.out[0];
    const Values pixels = read(images), index = read(indices), views = read(call.in[O::views]),
                 stats = read(call.in[O::statistics]);
    const Index4 y_index(y.shape());
    const int64_t n = y.extent(0), height = y.extent(1), width = y.extent(2), channels = images.extent(3),
                  image_size = images.extent(1) * images.extent(2) * channels;
    const size_t images_each = size_t(indices.shape().rank()); // 1 for indices [n], 2 for [n 2]
    const bool positions_only = call.in[O::views].extent(1) == kPositionNumbers;
    Values out(size_t(y.numel()));
    for (int64_t i = 0; i < n; ++i) {
        std::vector<Values> numbers, bytes; // per image: the numbers of its view, and the bytes that it shows
        for (size_t k = size_t(i) * images_each; k < size_t(i + 1) * images_each; ++k) {
            numbers.emplace_back(size_t(kViewNumbers), 0.0);
            numbers.back()[6] = numbers.back()[7] = numbers.back()[8] = double(kFactor);
            const size_t given = size_t(positions_only ? kPositionNumbers : kViewNumbers);
            std::copy_n(&views[k * given], given, numbers.back().begin());
            const BorderedImage image{&pixels[size_t(int64_t(index[k]) * image_size)], images.extent(1),
                                      images.extent(2), channels, call.attrs.as<O>().window.reflect};
            bytes.push_back(bytes_of(image, numbers.back().data(), height, width));
        }
        const double* const v = numbers[0].data();
        const auto in_box = [&](const double* box, int64_t h, int64_t w) {
            return double(h) >= box[0] && double(w) >= box[1] && double(h) < box[2] && double(w) < box[3];
        };
        for (int64_t h = 0; h < height; ++h)
            for (int64_t w = 0; w < width; ++w)
                for (int64_t c = 0; c < channels; ++c) {
                    const size_t k = size_t((h * width + w) * channels + c);
                    double byte = bytes[0][k];
                    if (bytes.size() == 2 && in_box(v + 10, h, w))
                        byte = rounded_byte(byte + v[9] / double(kFactor) * (bytes[1][k] - byte));
                    out[y_index(i, h, w, c)] =
                        in_box(v + 14, h, w) ? 0 : (byte / 255 - stats[size_t(c)]) / stats[size_t(channels + c)];
                }
    }
    write(y, out);
}

} // namespace rg
