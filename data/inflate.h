// Inflate: the decompressor for PNG (zlib streams) and .gz files, and the checksums CRC-32 and Adler-32.
//
// The output never exceeds the caller's limit. Memory stays below twice the limit + 64 KiB, and below four times the
// input + three times the output + 64 KiB. (The output is at most 1032 times the input.) If the input violates the
// format, throws Error with the offset in the input; no partial output is returned.
// Sources: RFC 1950 (zlib), RFC 1951 (DEFLATE), RFC 1952 (gzip).
#pragma once

#include "data/bytes.h"

#include <string_view>

namespace rg::data {

/// Returns the contents of one zlib stream that fills `in` exactly. Throws Error for a wrong header, a preset
/// dictionary, invalid or cut DEFLATE data, more than `limit` bytes of output, a wrong Adler-32, or bytes after the
/// stream. `name` is for error texts. A match may reach back farther than the window size in the header, but not before
/// the beginning of the output. With `damage`, needs only the first `limit` bytes of output: if these are there,
/// returns them, and sets *damage to the text of the error instead of throwing it.
std::vector<uint8_t> inflate_zlib(Bytes in, size_t limit, std::string_view name = "zlib stream",
                                  std::string* damage = nullptr);

/// Returns true if the bytes begin like a .gz file.
bool is_gzip(Bytes bytes);
/// Returns the contents of a .gz file: one or more members, which zeros may follow. Throws Error like inflate_zlib(),
/// and for a wrong CRC-32 or length. If the last four bytes, normally the length, exceed `limit`, throws Error before
/// it unpacks anything.
std::vector<uint8_t> inflate_gzip(Bytes in, size_t limit, std::string_view name = "gzip file");

/// Return the CRC-32 of PNG and gzip, and the Adler-32 (RFC 1950, section 8.2).
uint32_t crc32(Bytes bytes);
uint32_t adler32(Bytes bytes);

} // namespace rg::data
