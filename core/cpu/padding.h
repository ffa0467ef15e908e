// Copies images into zero-padded form, so that most convolution kernels need no code for borders. The copy also
// converts the values to the type that the kernels read, and can apply a batch norm, with or without ReLU.
#pragma once

#include "core/cpu/norm.h"
#include "core/ops/conv.h"

namespace rg::cpu {

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t n, int64_t unit) { return divide_up(n, unit) * unit; }

/// Images of h x w pixels and c channels, stored as T. If `norm` is set, read() normalises the values.
template <class T>
struct Images {
    const T* data;
    int64_t h, w, c;
    const AffineNorm* norm = nullptr;

    int64_t values() const { return h * w * c; }

    /// Reads `count` values of image n from index `begin` on, converted to type To. `begin` is a multiple of c.
    template <class To>
    void read(int64_t n, int64_t begin, int64_t count, To* to) const {
        const T* from = data + n * values() + begin;
        if constexpr (std::is_same_v<T, To>) {
            if (norm)
                norm->apply(from, to, count);
            else
                std::memcpy(to, from, size_t(count) * sizeof(T));
        } else {
            if (!norm) return isa().elements->widen(from, to, count);
            const Scratch<T> normalised(count);
            norm->apply(from, normalised.data(), count);
            isa().elements->widen(normalised, to, count);
        }
    }
};

template <class T>
Images<T> images_of(const Tensor& t, const AffineNorm* norm = nullptr) {
    return {stored<T>(t), t.extent(1), t.extent(2), t.extent(3), norm};
}

/// Position of an image of h x w pixels and c channels in a zero-padded image of rows x columns pixels.
struct Padding {
    int64_t h, w, c, rows, columns;
    int64_t top = 0, left = 0; // place of the image's first pixel in the padded image; if negative, pixels are cut off
    PerAxis spacing = 1; // distance between the image's pixels in the padded image; above 1 only for data gradients

    int64_t values() const { return rows * columns * c; }

    /// Writes image n to `padded`, with zeros around and between its pixels.
    template <class T, class To>
    void copy(const Images<T>& images, int64_t n, To* padded) const {
        if (spacing != 1 || left < 0 || left + w > columns) return copy_by_pixel(images, n, padded);
        for (int64_t row = 0; row < rows; ++row, padded += columns * c) {
            const int64_t i = row - top;
            if (i < 0 || i >= h) {
                std::fill_n(padded, columns * c, To{});
                continue;
            }
            std::fill_n(padded, left * c, To{});
            images.read(n, i * w * c, w * c, padded + left * c);
            std::fill_n(padded + (left + w) * c, (columns - left - w) * c, To{});
        }
    }

private:
    template <class T, class To>
    void copy_by_pixel(const Images<T>& images, int64_t n, To* padded) const {
        std::fill_n(padded, values(), To{});
        const Scratch<To> line(w * c);
        for (int64_t i = 0; i < h; ++i) {
            const int64_t row = top + i * spacing.h;
            if (row < 0 || row >= rows) continue;
            images.read(n, i * w * c, w * c, line.data());
            for (int64_t j = 0; j < w; ++j)
                if (const int64_t column = left + j * spacing.w; column >= 0 && column < columns)
                    std::memcpy(padded + (row * columns + column) * c, line + j * c, size_t(c) * sizeof(To));
        }
    }
};

/// Holds images [first, first + count) as f32, padded. Does not copy images that have this form already. Only
/// TileImages, which has the same interface, uses the unnamed parameter.
class PaddedImages {
public:
    template <class T>
    PaddedImages(const Padding& padding, int64_t, const Images<T>& images, int64_t first, int64_t count)
        : copies_(is_padded(padding, images) ? 0 : count * padding.values()), data_(copies_) {
        if constexpr (std::is_same_v<T, float>)
            if (is_padded(padding, images)) {
                data_ = images.data + first * images.values();
                return;
            }
        for (int64_t i = 0; i < count; ++i) padding.copy(images, first + i, copies_ + i * padding.values());
    }
    const float* data() const { return data_; }

private:
    template <class T>
    static bool is_padded(const Padding& p, const Images<T>& images) {
        return std::is_same_v<T, float> && !images.norm && p.spacing == 1 && p.top == 0 && p.left == 0 &&
               p.rows == p.h && p.columns == p.w;
    }
    Scratch<float> copies_;
    const float* data_;
};

/// Returns the padding of images x [n h w c] by `pad` pixels on each side.
inline Padding padding_of(const Shape& x, PerAxis pad) {
    return {.h = x[1],
            .w = x[2],
            .c = x[3],
            .rows = x[1] + 2 * pad.h,
            .columns = x[2] + 2 * pad.w,
            .top = pad.h,
            .left = pad.w};
}

/// Returns the padding with which a convolution of dy with stride 1 by rotated filters (rotated_filters_of()) gives dx.
inline Padding dgrad_padding(const Shape& dx, const Shape& filters, const Shape& dy, const Conv& conv) {
    const int64_t below = (filters[1] - 1) * conv.dilation.h, right = (filters[2] - 1) * conv.dilation.w;
    return {.h = dy[1],
            .w = dy[2],
            .c = dy[3],
            .rows = dx[1] + below,
            .columns = dx[2] + right,
            .top = below - conv.pad.h,
            .left = right - conv.pad.w,
            .spacing = conv.stride};
}

} // namespace rg::cpu
