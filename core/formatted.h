// Formats text like printf, but always as in the C locale.
//
// A program may set another locale, in which printf and streams write 0,5 for 0.5. Files, options and reports must not
// depend on that. So numbers become text by formatted() and cat() (core/base.h) alone, and text becomes numbers by
// read_number() (core/text.h) and std::from_chars(). tests/locales.py checks this.
#pragma once

#include <cstdint>
#include <string>

namespace rg {

/// Returns the text that std::snprintf() makes in the C locale, cut to 255 bytes.
[[gnu::format(printf, 1, 2)]] std::string formatted(const char* format, ...);
/// Returns 16 hexadecimal digits.
std::string hex(uint64_t value);

} // namespace rg
