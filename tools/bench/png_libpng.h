// libpng as bench_data calls it: the same work on the same bytes as our own decoder, and files as other tools write
// them. Built with -Dbench_libpng=enabled alone; no other program knows it.
#pragma once

#include "data/png.h"

namespace rg {

/// Decodes to 3 channels of 8 bits into fresh memory, with all checks that libpng does by itself. Error: its own.
data::Image libpng_decode(data::Bytes file);

/// A PNG as libpng makes it without being told anything: its choice of filters, zlib level 6.
std::vector<uint8_t> libpng_encode(const data::Image& rgb);

} // namespace rg
