// Fuzzes parse_s3_list and check_s3_object: for any answer of a server, an accepted object is below the requested
// prefix, and its name is one line. Also fuzzes the fetch of many objects: whatever their names are, each gets a file
// of its own in the folder, and its own lines in the list for the client. Fuzzes shell_word: a shell reads each name
// unchanged.
#include "ringgrad/data/s3.h"
#include "ringgrad/core/atomic_file.h"
#include "ringgrad/core/text.h"
#include "ringgrad/data/pipe.h"
#include "ringgrad/tests/fuzz/fuzz.h"
#include "ringgrad/tests/temp_dir.h"

#include <cctype>
#include <set>

namespace rg::fuzz {
namespace {

using namespace rg::data;

/// Returns the text that a shell reads from plain characters, quoted parts and escaped characters, or nothing for
/// anything else.
std::optional<std::string> unquoted(std::string_view word) {
    std::string out;
    for (size_t i = 0; i < word.size(); ++i) {
        if (std::isalnum(uint8_t(word[i])) || std::string_view("_-+=.,:/@%").find(word[i]) != word.npos) {
            out += word[i];
            continue;
        }
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

/// Checks the batch of objects with accepted names.
void check_batch(S3Client client, const std::string& url, const std::vector<S3Object>& objects) {
    static const TempDir folder;
    const auto batch = accepted([&] { return s3_get_batch(client, url, objects, folder.path()); });
    require(batch || client == S3Client::aws, "s5cmd and curl write any key");
    if (!batch) return;
    const std::set<std::string> files(batch->files.begin(), batch->files.end());
    require(batch->files.size() == objects.size() && files.size() == objects.size(), "a file for each object");
    for (const std::filesystem::path file : files) {
        require(file.string().starts_with(folder.path() + "/"), "files lie in the folder");
        for (const auto& part : file) require(part != ".." && part != ".", "files lie in the folder");
    }
    if (client == S3Client::aws) return;
    const std::string list = read_file(folder.path() + "/list");
    const size_t lines_per_object = client == S3Client::curl ? 2 : 1;
    require(size_t(std::count(list.begin(), list.end(), '\n')) == lines_per_object * objects.size(),
            "lines of the list");
}

} // namespace

void fuzz(Input input) {
    const auto client = S3Client(input.byte() % 3);
    const std::string answer = input.text(), url = "s3://b/p";
    require(unquoted(shell_word(answer)) == answer, "a word of a shell");
    require(printable(printable(answer)) == printable(answer), "printable text stays");
    std::string next;
    const auto objects = accepted([&] { return parse_s3_list(client, "b", answer, next); });
    if (!objects) return;
    std::vector<S3Object> named;
    std::set<std::string> names;
    for (const S3Object& entry : *objects) {
        const std::string& object = entry.url;
        std::string error;
        if (!accepted([&] { return check_s3_object(object, url), true; }, &error)) {
            require(error.size() < 4096, "an error is short");
            continue;
        }
        require(object.starts_with(url) && object.size() <= kMaxS3Key + 7, "below the prefix");
        for (const char c : object) require(uint8_t(c) >= ' ' && c != 127, "no control characters");
        if (names.insert(object).second) named.push_back(entry);
    }
    check_batch(client, url, named);
}

} // namespace rg::fuzz
