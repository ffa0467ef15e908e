// PNG: a decoder for every valid file of up to kMaxPixels pixels, and a small encoder. data/inflate.h decompresses.
//
// The decoder checks the CRC of every chunk and the Adler-32 of the image data. Like libpng and Pillow, it accepts some
// files that violate the format, if all of their pixels are there:
// - Image::damage tells if data are probably wrong, missing or too many: the Adler-32 is wrong, more image data follow
//   the pixels, or the file ends without a valid IEND; an ancillary chunk has a wrong CRC and is ignored; or a palette
//   index has no entry and becomes black.
// - Other mistakes cannot harm the pixels, so they are no damage. A PLTE is ignored if the image has no palette, and a
//   tRNS if its length or place is wrong. A palette may have more entries than the bit depth can use.
//
// All other violations throw Error with the name of the file; no partial image is returned. Ancillary chunks other than
// tRNS are skipped (there is no colour management). Unknown critical chunks are refused, except after the image data.
// Bytes after IEND are ignored, as in other decoders, because tools append data to PNGs.
// Source: PNG Specification, third edition, W3C 2025.
#pragma once

#include "data/bytes.h"

#include <memory>
#include <string>
#include <string_view>

namespace rg::data {

/// Rows from top to bottom, pixels from left to right, samples interleaved; 16-bit samples are big-endian, as in the
/// file.
struct Image {
    int64_t width = 0, height = 0;
    int channels = 0;  // 1 grey, 2 grey and alpha, 3 RGB, 4 RGBA
    int bit_depth = 8; // of `pixels`: 8 or 16, not that of the file
    std::vector<uint8_t> pixels;
    std::string damage = {}; // the error in a damaged file that could be decoded nevertheless, or ""
};

/// Files with more pixels are refused before memory for pixels is allocated. Decoding other files needs at most 20
/// bytes per pixel (32 if an interlaced image has fewer than 5 rows) + 8 times the size of the file + 64 KiB. Memory
/// for pixels grows with the unpacked data: see data/inflate.h.
constexpr int64_t kMaxPixels = int64_t{1} << 27;

/// Reserves memory for decoding an image, until the result is destroyed. Blocks while other threads decode and there is
/// too little for `bytes` more. Throws Error if there is too little for this image alone. Ignores requests below 16
/// MiB: decoding such an image takes less time than to find out how much memory there is.
[[nodiscard]] std::shared_ptr<void> reserve_memory(int64_t bytes, std::string_view name);

/// Returns true if the bytes begin with the PNG signature.
bool is_png(Bytes bytes);

/// The samples of a decoded PNG: colours, or the numbers that the file stores.
enum class PngSamples : uint8_t { colours, stored };

/// Decodes a PNG of any colour type, depth and interlacing. Palettes become RGB, tRNS becomes alpha, and grey samples
/// of less than 8 bits are scaled to 8. With PngSamples::stored, palette indices are grey samples, tRNS is ignored, and
/// nothing is scaled. `name` is for error texts.
Image decode_png(Bytes bytes, std::string_view name, PngSamples samples = PngSamples::colours);

/// Returns the image as grey (1 channel) or RGB (3 channels) of 8 bits. 16-bit samples are rounded. Grey is the luma of
/// ITU-R BT.601. Alpha is dropped, and not blended.
Image to_u8(const Image& image, int channels);

/// Returns a PNG with `channels` (1 to 4, as in Image) samples of 8 bits per pixel. `pixels` must have width * height *
/// channels bytes.
std::vector<uint8_t> encode_png(int64_t width, int64_t height, int channels, Bytes pixels);

} // namespace rg::data
