// Bytes of files, and big-endian numbers in them: what every reader of this folder starts from.
//
// The readers take spans, so that tests, the embedded sample and archives need no file. Whole files come from
// core/atomic_file.h at once: the largest one known here (a CIFAR-100 training set) has 154 MB.
#pragma once

#include "core/base.h"

#include <span>
#include <string_view>
#include <vector>

namespace rg::data {

using Bytes = std::span<const uint8_t>;

/// The characters of a file's contents as bytes, and back; the memory is the same.
inline Bytes as_bytes(std::string_view text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }
inline std::string_view as_text(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

inline uint32_t load_be32(const uint8_t* p) {
    return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | p[3];
}

} // namespace rg::data
