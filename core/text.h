// Makes foreign text (names of files, classes and objects, replies of servers) safe to print.
//
// A file name can contain a line break, a colour code or a cursor movement. Pass foreign text through printable()
// before a terminal shows it, and through csv_field() before it becomes part of a CSV line. core/json.h escapes text
// itself. For a shell, use shell_word() of data/pipe.h.
#pragma once

#include <string>
#include <string_view>

namespace rg {

/// Returns the bytes of the UTF-8 sequence at the start of a non-empty text. Returns 0 if the sequence is invalid:
/// overlong forms, surrogates and code points above U+10FFFF are.
size_t utf8_sequence(std::string_view text);
bool is_utf8(std::string_view text);

/// Returns the text as one line that cannot control a terminal. Control characters become \n, \t, \r or \x1b. Line
/// separators, invisible marks, characters that reorder a line, and invalid UTF-8 become one such escape per byte.
std::string printable(std::string_view text);

/// Returns the text as one field of a CSV line (RFC 4180), in quotes if necessary. Line breaks and other control
/// characters appear as in printable().
std::string csv_field(std::string_view text);

} // namespace rg
