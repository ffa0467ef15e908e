// SHA-256 (FIPS 180-4). The digest can serve as a file name: it does not contain the text, and no way is known to
// construct another text with the same digest.
#pragma once

#include "ringgrad/data/bytes.h"

namespace rg::data {

/// Returns the digest as 64 hexadecimal digits.
std::string sha256(Bytes bytes);

} // namespace rg::data
