// SHA-256 (FIPS 180-4): a name for a text that does not tell the text, and that no other text has, also where somebody
// looks for one.
#pragma once

#include "data/bytes.h"

namespace rg::data {

/// The digest in 64 hexadecimal digits.
std::string sha256(Bytes bytes);

} // namespace rg::data
