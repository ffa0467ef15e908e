// Text of others on its way to people and tables: names of files, classes and objects, the words of servers.
//
// Whoever names a file can put a line break, a colour or a cursor movement into the name. So such text passes through
// printable() before a terminal gets it, and through csv_field() before it joins a line of CSV. JSON escapes by itself
// (core/json.h), and a shell gets data/pipe.h's shell_word().
#pragma once

#include <string>
#include <string_view>

namespace rg {

/// The length of the UTF-8 sequence that the text begins with; 0 if it is none: no overlong forms, no surrogates,
/// nothing above U+10FFFF. Requires a text that is not empty.
size_t utf8_sequence(std::string_view text);
bool is_utf8(std::string_view text);

/// The text on one line, without anything that a terminal obeys. Control characters become \n, \t, \r or \x1b; so do
/// the bytes of line separators, of characters that reorder a line or mark it without being seen, and of what is not
/// UTF-8. The rest stays.
std::string printable(std::string_view text);

/// The text as one field of one line of CSV (RFC 4180): in quotes if it needs them, line breaks and other control
/// characters as printable() writes them.
std::string csv_field(std::string_view text);

} // namespace rg
