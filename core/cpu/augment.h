// A window of an image, flipped or not, through a table of what its bytes become: what the loader and the augment op
// have in common, so that both give the same bits.
#pragma once

#include "core/bf16.h"

#include <array>
#include <cstdint>

namespace rg::cpu {

/// Images of 1 to 4 channels, and the extents of the windows in them.
struct ViewShape {
    int64_t height, width, channels;
    int64_t window_height, window_width;
    bool reflect = false; // outside: mirrored at the edge pixel; else black, byte 0
};

/// Where a window begins in its image, perhaps outside; and whether it is turned left to right.
struct View {
    bool flip = false;
    int64_t y0 = 0, x0 = 0;
};

/// Whether mirroring once is enough for every pixel of the window.
bool within_reach(const ViewShape& shape, const View& view);

/// T: float or bf16. (byte / 255 - mean) / deviation per channel, in float, in this order: the bits that PyTorch's
/// transforms give.
template <class T>
using ByteTable = std::array<std::array<T, 256>, 4>;
template <class T>
ByteTable<T> byte_table(const float* mean, const float* deviation, int64_t channels);

/// out [window_height window_width channels]. Requires within_reach() when it reflects.
template <class T>
void write_view(const ViewShape& shape, const View& view, const ByteTable<T>& table, const uint8_t* image, T* out);

} // namespace rg::cpu
