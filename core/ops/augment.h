// The op that takes views of images and normalises them. The caller chooses the views, for example at random.
//
// A view is an affine map, so it can shift, flip, rotate and scale an image. The functions below compute it in
// integers. The CPU kernel, the CUDA kernel and data/augment.h (the same work in the data loader) use them, so all
// three give the same bits. The reference implementation uses double instead, and may round differently.
#pragma once

#include "core/op.h"

#include <algorithm>

namespace rg {

/// The largest number of channels of an image.
constexpr int64_t kMaxImageChannels = 16;

/// One pixel in the units of a view's fixed-point numbers, which are 1/65536 pixel.
constexpr int64_t kPixel = 1 << 16;
/// The factor 1 in the units of a view's factors, which are 1/65536.
constexpr int64_t kFactor = 1 << 16;

/// Rows [top, bottom) and columns [left, right) of a window.
struct Box {
    int32_t top = 0, left = 0, bottom = 0, right = 0;
    constexpr bool has(int64_t row, int64_t column) const {
        return row >= top && row < bottom && column >= left && column < right;
    }
    constexpr bool empty() const { return top >= bottom || left >= right; }
    bool operator==(const Box&) const = default;
};

/// Says how to make the pixels of a window from an image. By default, the window shows the image unchanged, from its
/// first pixel on.
struct View {
    // Map each pixel of the window to a position (y, x) in the image. All numbers are in units of 1/65536 pixel.
    // Position 0 is the centre of the first pixel.
    int32_t y0 = 0, y_per_row = kPixel, y_per_column = 0;
    int32_t x0 = 0, x_per_row = 0, x_per_column = kPixel;
    // Factors in units of 1/65536, applied in this order; see brightened() and contrasted().
    int32_t brightness = kFactor, contrast = kFactor, saturation = kFactor;
    // A second image has this share of each pixel in the box `mixed`: see augment().
    int32_t mixed_share = 0;
    Box mixed = {};
    Box erased = {}; // pixels whose normalised values become 0, the mean

    constexpr int64_t y(int64_t row, int64_t column) const { return y0 + row * y_per_row + column * y_per_column; }
    constexpr int64_t x(int64_t row, int64_t column) const { return x0 + row * x_per_row + column * x_per_column; }
    constexpr bool recolours() const { return brightness != kFactor || contrast != kFactor || saturation != kFactor; }
    constexpr bool mixes() const { return mixed_share != 0 && !mixed.empty(); }
    bool operator==(const View&) const = default;
};
/// The number of integers of a view, and of the first ones, which map pixels to positions.
constexpr int64_t kViewNumbers = sizeof(View) / sizeof(int32_t), kPositionNumbers = 6;

/// Returns view n of an array of views. Each view has kViewNumbers integers in the array, in the order of View's
/// members. With `positions_only`, it has the first six, and the others are the defaults.
constexpr View view_at(const int32_t* views, int64_t n, bool positions_only) {
    const int32_t* const v = views + n * (positions_only ? kPositionNumbers : kViewNumbers);
    if (positions_only) return {v[0], v[1], v[2], v[3], v[4], v[5]};
    const Box mixed{v[10], v[11], v[12], v[13]}, erased{v[14], v[15], v[16], v[17]};
    return {v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], mixed, erased};
}

/// Returns the index of the pixel at position i of a row or column that is mirrored at its edge pixels again and again.
constexpr int64_t mirrored(int64_t i, int64_t extent) {
    if (i >= 0 && i < extent) return i;
    const int64_t period = std::max<int64_t>(1, 2 * extent - 2), within = (i < 0 ? -i : i) % period;
    return within < extent ? within : period - within;
}

/// The two pixels beside a position on one axis, and the weight of the second one, in units of 1/65536.
struct Neighbours {
    int64_t first, second, weight;
    bool outside; // true: the position lies outside of the image and shows black (byte 0)
};

/// Returns the neighbours of a position. If `reflect` is set, the image continues mirrored, so no position is outside.
/// Otherwise the outer half of an edge pixel has the value of that pixel, and positions farther away are outside.
constexpr Neighbours neighbours(int64_t position, int64_t extent, bool reflect) {
    const int64_t first = position >> 16, weight = position & (kPixel - 1);
    if (reflect) return {mirrored(first, extent), mirrored(first + 1, extent), weight, false};
    const bool outside = position < -kPixel / 2 || position >= extent * kPixel - kPixel / 2;
    return {std::clamp<int64_t>(first, 0, extent - 1), std::clamp<int64_t>(first + 1, 0, extent - 1), weight, outside};
}

/// Returns the mean of four bytes with the weights of y and x (bilinear interpolation), rounded to a byte. `a` and `b`
/// are the two pixels of row y.first, `c` and `d` those of row y.second.
constexpr uint8_t bilinear(const Neighbours& y, const Neighbours& x, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t above = a * (kPixel - x.weight) + b * x.weight, below = c * (kPixel - x.weight) + d * x.weight;
    return uint8_t((above * (kPixel - y.weight) + below * y.weight + kPixel * kPixel / 2) >> 32);
}

/// Returns (1 - factor) * from + factor * to, rounded to a byte.
constexpr uint8_t blended(int64_t from, int64_t to, int64_t factor) {
    return uint8_t(std::clamp<int64_t>((from * kFactor + factor * (to - from) + kFactor / 2) >> 16, 0, 255));
}

/// Returns sum / count, rounded.
constexpr int64_t rounded_mean(int64_t sum, int64_t count) { return (2 * sum + count) / (2 * count); }

/// Returns the grey of a pixel, rounded to a byte; byte(c) is that of channel c. With three channels, red, green and
/// blue have the weights 0.299, 0.587 and 0.114, in the units of Pillow's convert("L"). Otherwise it is the mean of the
/// channels.
template <class Byte>
constexpr int64_t grey_of(int64_t channels, const Byte& byte) {
    if (channels == 3) return (19595 * byte(0) + 38470 * byte(1) + 7471 * byte(2) + (1 << 15)) >> 16;
    int64_t sum = 0;
    for (int64_t c = 0; c < channels; ++c) sum += byte(c);
    return rounded_mean(sum, channels);
}

// The changes of brightness, contrast and saturation are those of torchvision's functions of these names, in this
// order. Each rounds to a byte. Saturation moves a byte away from the grey of its pixel: blended(grey, byte, factor).

constexpr int64_t brightened(const View& view, int64_t byte) { return blended(0, byte, view.brightness); }
/// Changes the brightness and the contrast. `mean_grey` is the mean of grey_of() over the window after brightened(),
/// rounded to a byte.
constexpr int64_t contrasted(const View& view, int64_t mean_grey, int64_t byte) {
    return blended(mean_grey, brightened(view, byte), view.contrast);
}

struct Window {
    int64_t height = 0, width = 0;
    bool reflect = false; // true: mirrors the image at its edge pixels; false: pixels outside are black (byte 0)
    DType dtype = DType::f32;
};

/// Takes a view of each selected image, and normalises it. Values between pixels are interpolated bilinearly and
/// rounded to a byte. Returns [n height width c] in window.dtype. In f32, the kernels of CPU and GPU give the same bits
/// as data/augment.h; results in bf16 are these values, rounded. Arguments:
/// - images u8 [N h w c]: all N images of a set, each with h x w pixels and up to 16 channels;
/// - indices i32 [n]: the selected images;
/// - views i32 [n 18]: the integers of each View; [n 6]: only the first six, with the defaults for the others;
/// - statistics f32 [2 c]: the mean (row 0) and the standard deviation (row 1) of byte / 255, per channel.
///
/// With indices [n 2], each result is mixed from two images, and views is [n 36]. In the box `mixed` of the first view,
/// the second image has the share `mixed_share`; the mixture is rounded to a byte before normalisation. The second
/// view gives only positions, brightness, contrast and saturation.
Tensor augment(const Tensor& images, const Tensor& indices, const Tensor& views, const Tensor& statistics,
               const Window& window);

// ---- ops: their inputs, results and attributes ----

#define RG_AUGMENT_OPS(X) X(augment)
RG_AUGMENT_OPS(RG_DECLARE_OP)

struct AugmentOp {
    enum In { images, indices, views, statistics };
    Window window;
};

} // namespace rg
