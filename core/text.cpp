// Decodes UTF-8, escapes the characters that could control a terminal, and divides text.
#include "core/text.h"

#include "core/base.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <utility>

namespace rg {
namespace {

/// Returns true for a character that controls a terminal, divides or reorders a line, for a byte order mark, and for a
/// tag. `character` is one valid UTF-8 sequence.
bool is_control(std::string_view character) {
    static constexpr std::pair<uint32_t, uint32_t> kRanges[] = {
        {0, 0x1f},         // C0
        {0x7f, 0x9f},      // DEL and C1
        {0x61c, 0x61c},    // Arabic letter mark
        {0x200e, 0x200f},  // left-to-right and right-to-left marks
        {0x2028, 0x202e},  // line and paragraph separators, embeddings, overrides
        {0x2066, 0x2069},  // isolates
        {0xfeff, 0xfeff},  // byte order mark
        {0xe0000, 0xe007f} // tags
    };
    const size_t size = character.size();
    uint32_t point = uint8_t(character[0]) & (size == 1 ? 0x7fu : 0x7fu >> size);
    for (const char next : character.substr(1)) point = point << 6 | (uint8_t(next) & 0x3fu);
    return std::any_of(std::begin(kRanges), std::end(kRanges),
                       [&](const auto& range) { return range.first <= point && point <= range.second; });
}

void escape(std::string& out, char c) {
    static constexpr std::string_view kNamed = "\n\t\r", kNames = "ntr", kDigits = "0123456789abcdef";
    if (const size_t i = kNamed.find(c); i != kNamed.npos)
        out += {'\\', kNames[i]};
    else
        out += {'\\', 'x', kDigits[uint8_t(c) >> 4], kDigits[uint8_t(c) & 15]};
}

/// Returns true if a spreadsheet would run the text as a formula: it begins with =, +, - or @, and is not a number.
bool is_formula(std::string_view text) {
    double number = 0;
    return !text.empty() && std::string_view("=+-@").find(text[0]) != std::string_view::npos &&
           !read_number(text, number);
}

} // namespace

size_t utf8_sequence(std::string_view text) {
    const unsigned char c = static_cast<unsigned char>(text[0]);
    if (c < 0x80) return 1;
    const size_t more = c >= 0xC2 && c < 0xE0 ? 1 : c >= 0xE0 && c < 0xF0 ? 2 : c >= 0xF0 && c < 0xF5 ? 3 : 0;
    if (more == 0 || more >= text.size()) return 0;
    uint32_t point = c & (0x3Fu >> more);
    for (const char next : text.substr(1, more)) {
        if ((next & 0xC0) != 0x80) return 0;
        point = point << 6 | (uint32_t(next) & 63u);
    }
    if (more == 2 && (point < 0x800 || (point >= 0xD800 && point < 0xE000))) return 0;
    if (more == 3 && (point < 0x10000 || point > 0x10FFFF)) return 0;
    return more + 1;
}

bool is_utf8(std::string_view text) {
    while (!text.empty()) {
        const size_t sequence = utf8_sequence(text);
        if (sequence == 0) return false;
        text.remove_prefix(sequence);
    }
    return true;
}

std::string printable(std::string_view text) {
    std::string out;
    while (!text.empty()) {
        const size_t sequence = utf8_sequence(text);
        const std::string_view character = text.substr(0, sequence ? sequence : 1);
        text.remove_prefix(character.size());
        if (sequence && !is_control(character))
            out += character;
        else
            for (const char c : character) escape(out, c);
    }
    return out;
}

std::string shell_word(const std::string& text) {
    constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+=.,:/@%";
    if (!text.empty() && text.find_first_not_of(kPlain) == text.npos) return text;
    std::string word = "'";
    for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return word + "'";
}

std::string table_cell(std::string_view text) { return (is_formula(text) ? "'" : "") + printable(text); }

std::string_view text_of_cell(std::string_view cell) {
    return cell.starts_with('\'') && is_formula(cell.substr(1)) ? cell.substr(1) : cell;
}

std::string csv_field(std::string_view text) {
    const std::string plain = table_cell(text);
    if (plain.find_first_of(",\"") == std::string::npos) return plain;
    std::string out(1, '"');
    for (const char c : plain) {
        if (c == '"') out += c;
        out += c;
    }
    return out + '"';
}

size_t characters(std::string_view text) {
    return size_t(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string padded(std::string_view text, std::ptrdiff_t width) {
    const size_t wanted = size_t(std::abs(width)), size = characters(text);
    const std::string spaces(wanted > size ? wanted - size : 0, ' ');
    return width < 0 ? cat(spaces, text) : cat(text, spaces);
}

std::string_view trimmed(std::string_view text) {
    constexpr std::string_view kSpace = " \t\r";
    const size_t begin = std::min(text.find_first_not_of(kSpace), text.size());
    return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

std::string lower(std::string text) {
    for (char& c : text)
        if (c >= 'A' && c <= 'Z') c = char(c | 32);
    return text;
}

std::vector<std::string> split(std::string_view text, char separator) {
    std::vector<std::string> parts;
    for (size_t begin = 0;;) {
        const size_t end = text.find(separator, begin);
        parts.emplace_back(text.substr(begin, end - begin));
        if (end == text.npos) return parts;
        begin = end + 1;
    }
}

std::string wrapped(std::string_view text, size_t columns, size_t indent, std::string line) {
    std::string out;
    bool first = true;
    for (const std::string& word : split(text, ' ')) {
        if (!first && line.size() + 1 + word.size() > columns) {
            out += line + "\n";
            line.assign(indent, ' ');
        } else if (!first) {
            line += ' ';
        }
        line += word;
        first = false;
    }
    return out + line;
}

std::vector<std::string> csv_fields(std::string_view line, const std::string& where) {
    std::vector<std::string> fields(1);
    bool quoted = false;
    for (size_t i = 0; i < line.size(); ++i) {
        if (line[i] == '"' &&
            (quoted || fields.back().empty())) { // a quote inside an unquoted field is an ordinary character
            if (quoted && i + 1 < line.size() && line[i + 1] == '"')
                fields.back() += line[i++];
            else
                quoted = !quoted;
        } else if (line[i] == ',' && !quoted) {
            fields.emplace_back();
        } else if (line[i] != '\r') {
            fields.back() += line[i];
        }
    }
    RG_CHECK(!quoted, where, ": expected a closing quote, got the end of the line");
    return fields;
}

} // namespace rg
