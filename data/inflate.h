// Inflate: the decompressor behind PNG (zlib streams) and .gz files, and their two checksums.
//
// Output never grows beyond the caller's limit, and never ahead of what the input has really produced: no more memory
// is taken than 2 x limit + 64 KiB, nor than 4 x the input + 3 x its contents (which are at most 1032 x the input), +
// 64 KiB. Every violation of the format is an Error with its own text and the offset in the input; nothing partial is
// returned. Sources: RFC 1950 (zlib), RFC 1951 (DEFLATE), RFC 1952 (gzip).
#pragma once

#include "data/bytes.h"

#include <string_view>

namespace rg::data {

/// The contents of one zlib stream that fills `in` exactly. Errors: not a zlib stream, a preset dictionary, any
/// DEFLATE violation, more than `limit` bytes of output, wrong Adler-32, bytes behind the stream. `name` is for them.
/// The declared window size is not enforced: distances are bounded by the output so far.
std::vector<uint8_t> inflate_zlib(Bytes in, size_t limit, std::string_view name = "zlib stream");

/// The contents of a .gz file: one or more members, concatenated, and perhaps zeros behind them. Errors as above; also
/// wrong CRC-32 or length. If the length at the end is beyond `limit`, nothing is unpacked.
std::vector<uint8_t> inflate_gzip(Bytes in, size_t limit, std::string_view name = "gzip file");

/// CRC-32 as PNG and gzip use it. `crc` continues an earlier result.
uint32_t crc32(Bytes bytes, uint32_t crc = 0);

/// Adler-32 (RFC 1950, section 8.2). `adler` continues an earlier result.
uint32_t adler32(Bytes bytes, uint32_t adler = 1);

} // namespace rg::data
