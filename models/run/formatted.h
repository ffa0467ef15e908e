// Formats numbers like printf.
#pragma once

#include <cstdio>
#include <string>

namespace rg {

/// Returns the text of std::snprintf(), at most 127 bytes.
template <class... Values>
std::string formatted(const char* format, Values... values) {
    char text[128];
    std::snprintf(text, sizeof text, format, values...);
    return text;
}

} // namespace rg
