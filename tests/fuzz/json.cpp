// Json::parse: a value that is read is the same when it is written, in either form, and read again. Any text is written
// as JSON that gives it back.
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
