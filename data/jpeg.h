// JPEG: a decoder for the files that cameras and programs write: baseline, extended sequential and progressive, with
// Huffman codes and samples of 8 bits. data/jpeg_pixels.h makes the pixels.
//
// Colours become RGB, CMYK included, and the orientation in EXIF is applied. There is no colour management. Arithmetic
// coding, samples of 12 bits, and lossless and hierarchical files are refused.
//
// A file that is cut off or has invalid codes throws Error with the name of the file; no partial image is returned. The
// end marker is required, as in Pillow. Bytes after it and between segments are skipped, as in other decoders.
// Sources: ITU-T T.81 (1992), called T.81 below; JFIF 1.02; Adobe Technical Note 5116; Exif 2.32.
#pragma once

#include "ringgrad/data/png.h"

namespace rg::data {

/// Returns true if the bytes begin with the marker of the start and another marker.
bool is_jpeg(Bytes bytes);

/// Returns an image of 1 or 3 channels of 8 bits. `name` is for error texts. Files with more than kMaxPixels pixels are
/// refused before memory for pixels is allocated, and so are files with less than one bit per block of 8 x 8 samples.
/// Decoding other files needs at most 10 bytes per pixel, or 18 if the file is progressive; images that are smaller
/// than an MCU count as one.
Image decode_jpeg(Bytes bytes, std::string_view name);

} // namespace rg::data
