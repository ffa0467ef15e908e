// The op that takes views of images and normalises them. The caller chooses the views, for example at random.
//
// A view is an affine map, so it can shift, flip, rotate and scale an image. The functions below compute it in
// integers. The CPU kernel, the CUDA kernel and data/augment.h (the same work in the data loader) use them, so all
// three give the same bits. The reference implementation uses double instead, and may round differently.
#pragma once

#include "ringgrad/core/op.h"

#include <algorithm>

namespace rg {

/// The largest number of channels of an image.
constexpr int64_t kMaxImageChannels = 16;

/// One pixel in the units of a view's fixed-point numbers, which are 1/65536 pixel.
constexpr int64_t kPixel = 1 << 16;

/// Maps each pixel of a window to a position (y, x) in the image. All numbers are in units of 1/65536 pixel. Position 0
/// is the centre of the first pixel. By default, the window shows the image unchanged, from its first pixel on.
struct View {
    int32_t y0 = 0, y_per_row = kPixel, y_per_column = 0;
    int32_t x0 = 0, x_per_row = 0, x_per_column = kPixel;

    constexpr int64_t y(int64_t row, int64_t column) const { return y0 + row * y_per_row + column * y_per_column; }
    constexpr int64_t x(int64_t row, int64_t column) const { return x0 + row * x_per_row + column * x_per_column; }
    bool operator==(const View&) const = default;
};
/// The number of integers of a view.
constexpr int64_t kViewNumbers = sizeof(View) / sizeof(int32_t);

/// Returns view n of an array of views. Each view has six integers in the array, in the order of View's members.
constexpr View view_at(const int32_t* views, int64_t n) {
    const int32_t* const v = views + n * kViewNumbers;
    return {v[0], v[1], v[2], v[3], v[4], v[5]};
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

struct Window {
    int64_t height = 0, width = 0;
    bool reflect = false; // true: mirrors the image at its edge pixels; false: pixels outside are black (byte 0)
    DType dtype = DType::f32;
};

/// Takes a view of each selected image, and normalises it. Values between pixels are interpolated bilinearly and
/// rounded to a byte. Returns [n height width c] in window.dtype. The kernels of CPU and GPU give the same bits as
/// data/augment.h, which bf16 then rounds. Arguments:
/// - images u8 [N h w c]: all N images of a set, each with h x w pixels and up to 16 channels;
/// - indices i32 [n]: the selected images;
/// - views i32 [n 6]: the integers of each View;
/// - statistics f32 [2 c]: the mean (row 0) and the standard deviation (row 1) of byte / 255, per channel.
Tensor augment(const Tensor& images, const Tensor& indices, const Tensor& views, const Tensor& statistics,
               const Window& window);

// ---- rows of the op table ----

#define RG_AUGMENT_OPS(X) X(augment)
RG_AUGMENT_OPS(RG_DECLARE_OP)

struct AugmentOp {
    enum In { images, indices, views, statistics };
    Window window;
};

} // namespace rg
