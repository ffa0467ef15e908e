// Takes a view of an image (a window that may be shifted, flipped, transformed, recoloured, mixed with another image,
// and erased in part), and normalises its bytes by a table. The data loader and the CPU kernel of the augment op share
// this code, so both give the same bits.
#pragma once

#include "core/bf16.h"
#include "core/ops/augment.h"

#include <array>
#include <cstdint>

namespace rg::cpu {

/// Extents of the images and of the windows in them.
struct ViewShape {
    int64_t height, width, channels;
    int64_t window_height, window_width;
    bool reflect = false; // mirrors the image at its edge pixels; otherwise pixels outside are black (byte 0)
};

/// Holds the normalised value of each byte, per channel; T is float or bf16. The value is
/// (byte / 255 - mean) / deviation, computed in float in this order, for the same bits as PyTorch's transforms. For
/// bf16, it is then rounded.
template <class T>
using ByteTable = std::array<std::array<T, 256>, kMaxImageChannels>;
template <class T>
ByteTable<T> byte_table(const float* mean, const float* deviation, int64_t channels);

/// Writes a view of `image` to out [window_height window_width channels]. If there is a second image, blends its view,
/// second_view, into the box view.mixed with the weight view.mixed_share.
template <class T>
void write_view(const ViewShape& shape, const View& view, const ByteTable<T>& table, const uint8_t* image, T* out,
                const View& second_view = {}, const uint8_t* second_image = nullptr);

} // namespace rg::cpu
