// Texts as one message between ranks: how many there are, then the length and the bytes of each, lengths in 8 bytes.
//
// A text may hold any bytes: nothing in it can end it, or begin another. The ranks of a job are of one kind of machine,
// so numbers travel as they lie in memory.
#pragma once

#include "core/base.h"

#include <span>
#include <string_view>
#include <vector>

namespace rg::par {

/// The texts as one message.
std::string pack_texts(std::span<const std::string> texts);

/// The texts of a message. Error, with the offset: it is cut, or something follows the last text. Takes at most 8 times
/// the memory of the message.
std::vector<std::string> unpack_texts(std::string_view message);

} // namespace rg::par
