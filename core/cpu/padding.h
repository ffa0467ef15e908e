// Images in zero-padded form, one per thread, so that convolution kernels know no borders.
#pragma once

#include "core/cpu/scratch.h"

#include <cstring>

namespace rg::cpu {

inline int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/// Where an image of h x w pixels of c channels goes in a zero-padded image of rows x columns pixels.
struct Padding {
    int64_t h, w, c, rows, columns;
    int64_t top, left; // of the first pixel; negative: pixels are cut off
    int64_t spread;    // distance between neighbouring pixels (the stride, when a gradient is spread out)

    int64_t floats() const { return rows * columns * c; }

    void copy(const float* image, float* padded) const {
        for (int64_t i = 0; i < h; ++i) {
            const int64_t row = top + i * spread;
            if (row < 0 || row >= rows) continue;
            float* to = padded + row * columns * c;
            const float* from = image + i * w * c;
            if (spread == 1 && left >= 0 && left + w <= columns) {
                std::memcpy(to + left * c, from, size_t(w * c) * sizeof(float));
                continue;
            }
            for (int64_t j = 0; j < w; ++j)
                if (const int64_t column = left + j * spread; column >= 0 && column < columns)
                    std::memcpy(to + column * c, from + j * c, size_t(c) * sizeof(float));
        }
    }
};

/// This thread's padded image. The border is zeroed when the geometry starts; copies only write the inside.
inline float* padded_scratch(const Padding& padding) {
    static thread_local Scratch scratch;
    float* padded = scratch.ensure(padding.floats());
    std::memset(padded, 0, size_t(padding.floats()) * sizeof(float));
    return padded;
}

} // namespace rg::cpu
