// Wraps libpng for bench_data: it decodes the same files as our decoder, and writes files as other tools do. Only
// builds with -Dbench_libpng=enabled have it, and only in bench_data.
#pragma once

#include "ringgrad/data/png.h"

namespace rg {

/// Decodes to 3 channels of 8 bits in new memory, with all checks of libpng. Throws Error if libpng reports an error.
data::Image libpng_decode(data::Bytes file);

/// Returns a PNG file with the default settings of libpng: automatic filters and zlib level 6.
std::vector<uint8_t> libpng_encode(const data::Image& rgb);

} // namespace rg
