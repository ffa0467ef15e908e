// Builds the texts of errors.
#include "core/base.h"

#include "core/formatted.h"

namespace rg {
namespace {

/// Returns the text. If it has more than 1000 bytes, returns only its first 700 and last 200 bytes, and its size. Keeps
/// characters of UTF-8 whole.
std::string shortened(std::string text) {
    constexpr size_t kMost = 1000, kBegin = 700, kEnd = 200;
    if (text.size() <= kMost) return text;
    const auto within_character = [&](size_t i) { return (text[i] & 0xC0) == 0x80; };
    size_t begin = kBegin, end = text.size() - kEnd;
    while (begin > kBegin - 3 && within_character(begin)) --begin;
    while (end < text.size() - kEnd + 3 && within_character(end)) ++end;
    return cat(text.substr(0, begin), " ... ", text.substr(end), " (", text.size(), " bytes)");
}

} // namespace

void TextPiece::append_to(std::string& text) const {
    switch (form_) {
    case Form::text: text += text_; break;
    case Form::character: text += char(integer_); break;
    case Form::integer: text += std::to_string(integer_); break;
    case Form::natural: text += std::to_string(natural_); break;
    case Form::real: text += formatted("%g", real_); break;
    }
}

std::string cat(std::initializer_list<TextPiece> pieces) {
    std::string text;
    for (const TextPiece& piece : pieces) piece.append_to(text);
    return text;
}

std::string LayerScope::error_suffix() {
    const std::string* const layer = Scope::current().layer;
    return layer ? cat(" (layer ", *layer, ")") : "";
}

void fail(std::initializer_list<TextPiece> pieces) {
    std::string text;
    for (const TextPiece& piece : pieces) text += shortened(cat({piece}));
    throw Error(text + LayerScope::error_suffix());
}

} // namespace rg
