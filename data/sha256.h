// SHA-256 (FIPS 180-4): names a text without revealing it. Nobody can construct another text with the same name.
#pragma once

#include "data/bytes.h"

namespace rg::data {

/// Returns the digest as 64 hexadecimal digits.
std::string sha256(Bytes bytes);

} // namespace rg::data
