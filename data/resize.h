// Changes the size of images: bilinear resampling with antialiasing, as Pillow does it.
//
// Each row is resampled, then each column, and each result is rounded to 8 bits. A pixel of the result is a weighted
// mean of source pixels. The weights fall linearly with the distance. They reach zero at a distance of one source pixel
// or, if the image shrinks, of one pixel of the result, so that no source pixel is left out. Weights have 22 fractional
// bits. So the bytes equal those of Pillow's Image.resize(size, Image.BILINEAR) per channel; tools/compare_images.py
// checks that. But Pillow multiplies colours by alpha before it resizes, and this file treats alpha as any other
// channel.
// Source: Pillow, src/libImaging/Resample.c.
#pragma once

#include "data/png.h"

namespace rg::data {

/// Returns the image with height x width pixels. Throws Error if a size is below 1 or the result has more than
/// kMaxPixels pixels. Also throws unless the image has 8 bits, 1 to 16 channels, and the number of bytes for its size.
Image resize(const Image& image, int64_t height, int64_t width);

/// Returns the centre of the image with height x width pixels. Resizes both axes by one factor (up to rounding), so
/// that the image just covers height x width, and crops the rest. The bytes equal those of torchvision's Resize to the
/// covering size and CenterCrop. An image that has this size already is returned unchanged. The memory taken is limited
/// by the sizes of the image and of the result, however long and narrow the image is. Throws Error as resize() does.
Image fit(const Image& image, int64_t height, int64_t width);

/// Returns the number of pixels before the middle `count` of `extent` pixels. Rounds half a pixel to even, as
/// torchvision's CenterCrop does.
int64_t centre_offset(int64_t extent, int64_t count);

} // namespace rg::data
