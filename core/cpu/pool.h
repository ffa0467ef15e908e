// Max pooling of one image, for kernels that pool their result while it is in cache.
#pragma once

#include "ringgrad/core/cpu/norm.h"

namespace rg::cpu {

/// Divides an image x [h w c] (rows, columns, channels) into squares of window x window pixels. Writes the largest
/// value of each square and channel to y [h/window w/window c]. Skips rows and columns after the last whole square.
template <class T>
void max_pool_image(const T* x, int64_t h, int64_t w, int64_t c, int64_t window, T* y) {
    const PoolImage image{{h, h / window, window, window, 0}, {w, w / window, window, window, 0}, c, true};
    const Scratch<uint8_t> positions((h / window) * (w / window) * c);
    for (int64_t row = 0; row < h / window; ++row) kernels<T>().max_pool(image, row, x, y, positions);
}

} // namespace rg::cpu
