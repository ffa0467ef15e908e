// Fuzzes Json::parse: an accepted value survives a write in either form and a read. Any text survives a write as a JSON
// string and a read.
#include "core/json.h"
#include "tests/fuzz/fuzz.h"

namespace rg::fuzz {

void fuzz(Input input) {
    const int indent = input.byte() % 3;
    const std::string text = input.text();
    if (const auto value = accepted([&] { return Json::parse(text, "fuzz"); }))
        require(Json::parse(value->dump(indent), "again") == *value, "a value, written and read");
    require(Json::parse(Json(text).dump(), "text").as_string() == text, "any text, written and read");
}

} // namespace rg::fuzz
