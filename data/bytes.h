// Types and functions for bytes, and for big-endian numbers in them, which the readers of this folder use.
//
// The parsers take spans, so that tests, the embedded sample and archives need no file. core/atomic_file.h reads whole
// files at once; the training set of CIFAR-100, for example, has 154 MB.
#pragma once

#include "core/base.h"

#include <span>
#include <string_view>
#include <vector>

namespace rg::data {

using Bytes = std::span<const uint8_t>;

/// Return a view of the same memory as bytes or as characters.
inline Bytes as_bytes(std::string_view text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }
inline std::string_view as_text(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

inline uint32_t load_be32(const uint8_t* p) {
    return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | p[3];
}

} // namespace rg::data
