// Packs several texts into one message between ranks: their number, then the length and the bytes of each. Numbers take
// 8 bytes.
//
// A text may hold any bytes; none of them can end the text or begin another. All ranks of a job have the same byte
// order, so numbers are sent as they are in memory.
#pragma once

#include "ringgrad/core/base.h"

#include <span>
#include <string_view>
#include <vector>

namespace rg::par {

/// Returns the texts as one message.
std::string pack_texts(std::span<const std::string> texts);

/// Returns the texts of a message. Throws Error if the message is incomplete or longer than its texts.
/// Needs at most 8 times the memory of the message.
std::vector<std::string> unpack_texts(std::string_view message);

} // namespace rg::par
