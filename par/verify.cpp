// See verify.h. The parts travel as one JSON text, so one allgather compares all of them.
#include "par/verify.h"

#include "core/json.h"

#include <algorithm>

namespace rg::par {

void verify_same(Group& group, const std::string& name, const std::vector<std::string>& parts,
                 const std::string& hint) {
    const std::vector<std::string> texts = group.allgather(Json::of_texts(parts).dump(), name);
    if (std::count(texts.begin(), texts.end(), texts[0]) == std::ssize(texts)) return;
    const auto is_majority = [&](const std::string& text) {
        return 2 * std::count(texts.begin(), texts.end(), text) > std::ssize(texts);
    };
    const auto majority = std::find_if(texts.begin(), texts.end(), is_majority);
    const auto reference = majority == texts.end() ? texts.begin() : majority;
    const auto other = std::find_if(texts.begin(), texts.end(), [&](const auto& text) { return text != *reference; });
    const Json expected = Json::parse(*reference, name), differing = Json::parse(*other, name);
    const auto part = [](const Json& parts, size_t i) {
        return i < parts.as_array().size() ? parts.as_array()[i].as_string() : "nothing";
    };
    const size_t common = std::min(expected.as_array().size(), differing.as_array().size());
    size_t i = 0;
    while (i < common && part(expected, i) == part(differing, i)) ++i;
    const auto name_of = [&](auto text) { return group.link().name_of(int(text - texts.begin())); };
    throw RanksDiffer(cat(name, ": expected the same on all ranks, got ", part(expected, i), " (", name_of(reference),
                          ") and ", part(differing, i), " (", name_of(other), "); ", hint));
}

} // namespace rg::par
