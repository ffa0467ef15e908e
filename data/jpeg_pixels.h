// The arithmetic of JPEG: samples from coefficients, and pixels from samples. data/jpeg.h reads the files.
//
// All results are those of Pillow with libjpeg-turbo and its default settings, to the last bit: the accurate integer
// DCT, the triangle filter between samples, the conversion of colours, and the orientation. Networks that were trained
// on images from Pillow see the same pixels here.
#pragma once

#include "data/png.h"

namespace rg::data {

/// The samples of one component. The rows in memory are long enough for whole MCUs (minimum coded units).
struct JpegPlane {
    int h = 1, v = 1;              // sampling factors, 1 to 4
    int64_t width = 0, height = 0; // in samples that belong to the image
    int64_t stride = 0;            // samples per row in memory: 8 * h for each MCU
    std::vector<uint8_t> samples;
};

enum class JpegColours { grey, rgb, ycc, cmyk, ycck };

/// Writes the 8 x 8 samples of a block of coefficients, all of which but the first are zero if `only_dc`.
void write_jpeg_block(const int16_t* block, bool only_dc, uint8_t* out, int64_t stride);

/// Returns the pixels of 1, 3 or 4 planes: grey as it is, and all others as RGB. Inks are inverted, as Adobe writes
/// them.
Image jpeg_image(int64_t width, int64_t height, JpegColours colours, std::span<const JpegPlane* const> planes);

/// Returns the image turned and mirrored as orientation 1 to 8 of Exif 2.32, section 4.6.4, asks for.
Image oriented(const Image& image, int orientation);

} // namespace rg::data
