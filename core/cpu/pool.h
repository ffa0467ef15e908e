// Max pooling of one image, for kernels that pool their result while it is in cache.
#pragma once

#include "ringgrad/core/cpu/norm.h"

namespace rg::cpu {

/// Writes the largest value of each window x window pixels of x [h w c] to y [h/window w/window c]. Skips the rows and
/// columns after the last whole window.
template <class T>
void max_pool_image(const T* x, int64_t h, int64_t w, int64_t c, int64_t window, T* y) {
    const Scratch<uint8_t> positions(c);
    for (int64_t i = 0; i + window <= h; i += window)
        for (int64_t j = 0; j + window <= w; j += window, y += c)
            kernels<T>().max_window(x + (i * w + j) * c, w * c, window, c, y, positions);
}

} // namespace rg::cpu
