// parse_s3_list and check_s3_object: whatever a server answers, an object that is accepted is below the prefix that was
// asked for, and its name is one line. shell_word: a shell would give each name back as it is.
#include "data/s3.h"
#include "core/text.h"
#include "data/pipe.h"
#include "tests/fuzz/fuzz.h"

namespace rg::fuzz {
namespace {

using namespace rg::data;

/// What a shell makes of words in single quotes and characters behind a backslash; nothing for anything else.
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
