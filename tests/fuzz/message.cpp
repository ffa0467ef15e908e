// Fuzzes pack_texts and unpack_texts: texts survive a round trip, truncated messages are rejected, and accepted bytes
// are what their texts pack to.
#include "ringgrad/par/message.h"
#include "ringgrad/tests/fuzz/fuzz.h"

namespace rg::fuzz {
namespace {

using namespace rg::par;

void fuzz_texts(Input& input) {
    std::vector<std::string> texts;
    while (!input.empty()) texts.push_back(input.text(input.byte()));
    const std::string message = pack_texts(texts);
    require(unpack_texts(message) == texts, "texts come out as they went in");
    for (const size_t size : {message.size() - 1, message.size() / 2, size_t{0}})
        require(!accepted([&] { return unpack_texts(std::string_view(message).substr(0, size)); }), "a cut is found");
}

} // namespace

void fuzz(Input input) {
    if (input.byte() & 1) return fuzz_texts(input);
    const std::string message = input.text();
    if (const auto texts = accepted([&] { return unpack_texts(message); }))
        require(pack_texts(*texts) == message, "a message is what its texts are packed to");
}

} // namespace rg::fuzz
