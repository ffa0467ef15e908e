// Makes text from outside (names of files, classes and S3 objects, replies of servers) safe to print. Also checks
// UTF-8, reads numbers, and splits and wraps text.
//
// A file name can contain a line break, a colour code or a cursor movement. Pass such text through printable()
// before a terminal shows it, and through table_cell() or csv_field() before a table contains it. core/json.h itself
// escapes what JSON requires. A command for a shell needs shell_word().
#pragma once

#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace rg {

/// Returns the number of bytes in the UTF-8 sequence at the start of a non-empty text. Returns 0 if the sequence is
/// invalid: for example incomplete, overlong, a surrogate, or above U+10FFFF.
size_t utf8_sequence(std::string_view text);
bool is_utf8(std::string_view text);

/// Returns the text as one line that cannot control a terminal. Each byte of a control character, line or paragraph
/// separator, character that reorders a line, byte order mark, tag character, or invalid UTF-8 becomes an escape: \n,
/// \t, \r, or \x and two hexadecimal digits.
std::string printable(std::string_view text);

/// Returns printable(text), for a table that a spreadsheet may open. A spreadsheet would run a text that begins with
/// "=", "+", "-" or "@" as a formula. Such a text gets an apostrophe in front, unless it is a number.
std::string table_cell(std::string_view text);
/// Returns the text of a cell without the apostrophe of table_cell().
std::string_view text_of_cell(std::string_view cell);

/// Returns table_cell(text) as one field of a CSV line (RFC 4180), in quotes if necessary.
std::string csv_field(std::string_view text);

/// Returns the text as one word of a shell command, in quotes if necessary.
std::string shell_word(const std::string& text);

/// Returns the fields of one line of CSV: csv_field() in reverse, apart from the apostrophe. Throws Error, which begins
/// with `where`, if a quote is not closed.
std::vector<std::string> csv_fields(std::string_view line, const std::string& where);

/// Returns true if the whole text is a number of type T, in the syntax of std::from_chars(), and sets `value` to it. If
/// it returns false, `value` may have changed too.
template <class T>
bool read_number(std::string_view text, T& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size();
}

/// Returns the number of characters (code points) of a text in UTF-8.
size_t characters(std::string_view text);

/// Returns the text, filled up to `width` characters with spaces at its end, or if `width` is negative, to -width
/// characters with spaces at its begin.
std::string padded(std::string_view text, std::ptrdiff_t width);

/// Returns the text without the spaces, tabs and carriage returns around it.
std::string_view trimmed(std::string_view text);

/// Returns the text with the letters A to Z in lower case.
std::string lower(std::string text);

/// Returns the parts of a text between the separators, one more than there are separators.
std::vector<std::string> split(std::string_view text, char separator);

/// Appends the text to `line` and returns the result. Breaks the text at spaces into lines of at most `columns` bytes;
/// a longer word makes a longer line. Each line after the first begins with `indent` spaces.
std::string wrapped(std::string_view text, size_t columns, size_t indent = 4, std::string line = "");

} // namespace rg
