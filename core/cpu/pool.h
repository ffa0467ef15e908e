// Max pooling of one image, for kernels that pool what they have just made.
#pragma once

#include "core/cpu/norm.h"

namespace rg::cpu {

/// y [h/window w/window c] = the largest of each window x window pixels of x [h w c]; rows and columns that fill no
/// window are left out.
template <class T>
void max_pool_image(const T* x, int64_t h, int64_t w, int64_t c, int64_t window, T* y) {
    const Scratch<uint8_t> positions(c);
    for (int64_t i = 0; i + window <= h; i += window)
        for (int64_t j = 0; j + window <= w; j += window, y += c)
            kernels<T>().max_window(x + (i * w + j) * c, w * c, window, c, y, positions);
}

} // namespace rg::cpu
