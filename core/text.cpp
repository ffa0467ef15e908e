// See text.h.
#include "core/text.h"

#include <cstdint>

namespace rg {
namespace {

/// C0 and DEL, C1 (U+0080 to U+009F), U+2028 to U+202E (separators, embeddings, overrides), U+2066 to U+2069
/// (isolates).
bool is_control(std::string_view character) {
    const auto byte = [&](size_t i) { return uint8_t(character[i]); };
    if (character.size() == 1) return byte(0) < ' ' || byte(0) == 0x7f;
    if (character.size() == 2) return byte(0) == 0xc2 && byte(1) < 0xa0;
    if (character.size() == 4 || byte(0) != 0xe2) return false;
    return (byte(1) == 0x80 && byte(2) >= 0xa8 && byte(2) <= 0xae) ||
           (byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9);
}

void escape(std::string& out, char c) {
    static constexpr std::string_view kNamed = "\n\t\r", kNames = "ntr", kDigits = "0123456789abcdef";
    if (const size_t i = kNamed.find(c); i != kNamed.npos)
        out += {'\\', kNames[i]};
    else
        out += {'\\', 'x', kDigits[uint8_t(c) >> 4], kDigits[uint8_t(c) & 15]};
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

std::string csv_field(std::string_view text) {
    const std::string plain = printable(text);
    if (plain.find_first_of(",\"") == std::string::npos) return plain;
    std::string out(1, '"');
    for (const char c : plain) {
        if (c == '"') out += c;
        out += c;
    }
    return out + '"';
}

} // namespace rg
