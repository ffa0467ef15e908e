// JPEG: a decoder for the files that cameras and programs write: baseline, extended sequential and progressive, with
// Huffman codes and samples of 8 bits. data/jpeg_pixels.h makes the pixels.
//
// Colours become RGB, CMYK included, and the orientation in EXIF is applied. There is no colour management. Arithmetic
// coding, samples of 12 bits, and lossless and hierarchical files are refused.
//
// Like libjpeg and Pillow, the decoder accepts some files that violate the format. Their Image::damage says so, if the
// pixels may be wrong: invalid Huffman codes become zeros; image data that end too early leave grey blocks; after a
// wrong restart marker, decoding goes on where the data probably belong; and scans may not continue earlier ones. Files
// without Huffman tables, such as the frames of webcams, have the typical ones. Bytes after the end marker and between
// segments are skipped.
//
// All other violations throw Error with the name of the file. So does a file that is cut off: the end marker is
// required, as in Pillow. A file of few bytes for its blocks and scans is refused, since it would take long.
// Sources: ITU-T T.81 (1992), called T.81 below; JFIF 1.02; Adobe Technical Note 5116; Exif 2.32.
#pragma once

#include "data/png.h"

namespace rg::data {

/// Returns true if the bytes begin with the start marker and the FF of another marker.
bool is_jpeg(Bytes bytes);

/// Returns an image of 1 or 3 channels of 8 bits. `name` is for error texts. Files with more than kMaxPixels pixels are
/// refused before memory for pixels is allocated, and so are files with less than one bit per block of 8 x 8 samples.
/// Blocks while other threads decode large images and leave too little memory (reserve_memory()). Decoding other files
/// needs at most 10 bytes per pixel, or 18 if the file is progressive; images that are smaller than an MCU (minimum
/// coded unit) count as one.
Image decode_jpeg(Bytes bytes, std::string_view name);

} // namespace rg::data
