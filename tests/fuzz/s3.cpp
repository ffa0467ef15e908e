// Fuzzes parse_s3_list and check_s3_object: for any answer of a server, an accepted object is below the requested
// prefix, and its name is one line. Also fuzzes shell_word: a shell reads each name unchanged.
#include "ringgrad/data/s3.h"
#include "ringgrad/core/text.h"
#include "ringgrad/data/pipe.h"
#include "ringgrad/tests/fuzz/fuzz.h"

namespace rg::fuzz {
namespace {

using namespace rg::data;

/// Returns the text that a shell reads from quoted parts and escaped characters, or nothing for anything else.
std::optional<std::string> unquoted(std::string_view word) {
    std::string out;
    for (size_t i = 0; i < word.size(); ++i) {
        if (word[i] == '\\' && i + 1 < word.size()) {
            out += word[++i];
            continue;
        }
        const size_t end = word[i] == '\'' ? word.find('\'', i + 1) : word.npos;
        if (end == word.npos) return {};
        out += word.substr(i + 1, end - i - 1);
        i = end;
    }
    return out;
}

} // namespace

void fuzz(Input input) {
    const auto client = S3Client(input.byte() % 3);
    const std::string answer = input.text(), url = "s3://b/p";
    require(unquoted(shell_word(answer)) == answer, "a word of a shell");
    require(printable(printable(answer)) == printable(answer), "printable text stays");
    std::string next;
    const auto objects = accepted([&] { return parse_s3_list(client, "b", answer, next); });
    for (size_t i = 0; objects && i < objects->size(); ++i) {
        const std::string& object = (*objects)[i].url;
        std::string error;
        if (!accepted([&] { return check_s3_object(object, url), true; }, &error)) {
            require(error.size() < 4096, "an error is short");
            continue;
        }
        require(object.starts_with(url) && object.size() <= kMaxS3Key + 7, "below the prefix");
        for (const char c : object) require(uint8_t(c) >= ' ' && c != 127, "no control characters");
    }
}

} // namespace rg::fuzz
