// Changes the size of images: bilinear resampling with antialiasing, as Pillow does it.
//
// Each axis is resampled on its own, columns first, and each result is rounded to 8 bits. A position of the result is a
// weighted mean of source pixels. The weights fall linearly with the distance. They reach zero at one source pixel, or
// at one pixel of the result if the image shrinks, so that no source pixel is left out. Weights have 22 fractional
// bits. So the bytes equal those of Pillow's Image.resize(size, Image.BILINEAR) per channel; tools/compare_images.py
// checks that. But Pillow multiplies colours by alpha before, and this file treats alpha as any other channel.
// Source: Pillow, src/libImaging/Resample.c.
#pragma once

#include "ringgrad/data/png.h"

namespace rg::data {

/// Returns the image with height x width pixels. Throws Error if a size is below 1 or the result has more than
/// kMaxPixels pixels, or if the image does not have 8 bits and 1 to 16 channels.
Image resize(const Image& image, int64_t height, int64_t width);

/// Returns the centre of the image with height x width pixels: resizes both axes by one factor, so that the image just
/// covers height x width, and crops what protrudes. The bytes equal those of torchvision's Resize and CenterCrop. An
/// image that has this size already is returned unchanged. The memory taken is limited by the sizes of the image and of
/// the result, however long and narrow the image is. Throws Error as resize() does.
Image fit(const Image& image, int64_t height, int64_t width);

} // namespace rg::data
