// PNG: a decoder for every valid file and a small encoder. Nothing but our own inflate is used.
//
// The decoder is strict: the CRC of every chunk, the Adler-32 of the image data, the order and number of the critical
// chunks and of tRNS, and the amount of image data must all be right, or there is an Error that names the file and
// the offset. Nothing partial is returned. Unknown ancillary chunks are skipped (colour management is not applied),
// unknown critical ones refused. Bytes behind IEND are ignored, as other decoders do: tools append to PNGs.
// Source: PNG Specification, third edition, W3C 2025.
#pragma once

#include "data/bytes.h"

#include <string_view>

namespace rg::data {

/// Rows from the top, pixels from the left, samples interleaved; 16-bit samples are big-endian, as in the file.
struct Image {
    int64_t width = 0, height = 0;
    int channels = 0;  // 1 grey, 2 grey and alpha, 3 RGB, 4 RGBA
    int bit_depth = 8; // 8 or 16
    std::vector<uint8_t> pixels;
};

/// Files that say they have more pixels are refused before any memory is taken for them. Others take at most 20 bytes
/// per pixel + 8 x the file + 64 KiB, and pixels are made only of data that were there to unpack: see data/inflate.h.
constexpr int64_t kMaxPixels = int64_t{1} << 26;

/// Whether the bytes begin with the PNG signature.
bool is_png(Bytes bytes);

/// Decodes a PNG of any colour type, depth and interlacing. Palettes become RGB, tRNS becomes alpha, depths below 8
/// are scaled to 8. `name` is for the messages.
Image decode_png(Bytes bytes, std::string_view name);
Image read_png(const std::string& path);

/// The same image with four channels and the same depth. Absent alpha is opaque.
Image to_rgba(const Image& image);

/// The same image as `channels` (1 to 4) samples of 8 bits. 16 bits are rounded; grey is the luma of ITU-R BT.601;
/// dropped alpha is not blended with anything.
Image to_u8(const Image& image, int channels);
inline Image to_rgba8(const Image& image) { return to_u8(image, 4); }

/// A PNG of `channels` (1 to 4, as in Image) samples of 8 bits per pixel. Requires width * height * channels bytes.
std::vector<uint8_t> encode_png(int64_t width, int64_t height, int channels, Bytes pixels);
void write_png(const std::string& path, int64_t width, int64_t height, int channels, Bytes pixels);

} // namespace rg::data
