// Formats text like printf.
#pragma once

#include <cstdio>
#include <string>

namespace rg {

/// Returns the text that std::snprintf() makes, cut to 255 bytes.
template <class... Values>
std::string formatted(const char* format, Values... values) {
    char text[256];
    std::snprintf(text, sizeof text, format, values...);
    return text;
}

} // namespace rg
