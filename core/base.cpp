// The texts of errors.
#include "ringgrad/core/base.h"

#include "ringgrad/core/formatted.h"

namespace rg {

void Part::append_to(std::string& text) const {
    switch (kind_) {
    case Kind::text: text += text_; break;
    case Kind::character: text += char(integer_); break;
    case Kind::integer: text += std::to_string(integer_); break;
    case Kind::natural: text += std::to_string(natural_); break;
    case Kind::real: text += formatted("%g", real_); break;
    }
}

std::string cat(std::initializer_list<Part> parts) {
    std::string text;
    for (const Part& part : parts) part.append_to(text);
    return text;
}

std::string LayerScope::note() {
    const std::string* const layer = Scope::current().layer;
    return layer ? cat(" (layer ", *layer, ")") : "";
}

void fail(std::initializer_list<Part> parts) { throw Error(cat(parts) + LayerScope::note()); }

} // namespace rg
