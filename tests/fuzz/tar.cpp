// Fuzzes read_tar with unchanged archives, with correct checksums, and with archives of members that the input lists.
// Files lie within the archive and have names of limited length. Valid members are read back.
#include "ringgrad/data/tar.h"
#include "ringgrad/tests/fuzz/fuzz.h"

#include <algorithm>

namespace rg::fuzz {
namespace {

using namespace rg::data;

constexpr size_t kBlock = 512, kSizeAt = 124, kChecksumAt = 148, kTypeAt = 156, kMagicAt = 257, kPrefixAt = 345;

using Files = std::vector<std::pair<std::string, std::string>>;

Files read(Bytes archive) {
    Files files;
    read_tar(archive, "fuzz", [&](const std::string& path, Bytes content) {
        require(!path.empty() && path.size() <= kMaxTarName && !path.starts_with("./"), "names");
        require(content.empty() || (content.data() >= archive.data() &&
                                    content.data() + content.size() <= archive.data() + archive.size()),
                "contents are in the archive");
        files.emplace_back(path, as_text(content));
    });
    return files;
}

void repair(uint8_t* header) {
    std::memset(header + kChecksumAt, ' ', 8);
    unsigned sum = 0;
    for (size_t i = 0; i < kBlock; ++i) sum += header[i];
    std::snprintf(reinterpret_cast<char*>(header) + kChecksumAt, 8, "%06o", sum);
}

void append_padded(Vec& archive, Bytes content) {
    append(archive, content);
    archive.resize((archive.size() + kBlock - 1) / kBlock * kBlock);
}

/// Returns members with arbitrary fields. `expected` gets their files, or nothing after the first unusual field.
void fuzz_members(Input& input) {
    Vec archive;
    std::optional<Files> expected = Files{};
    for (int members = 0; members < 8 && !input.empty(); ++members) {
        Vec header(kBlock);
        const uint8_t form = input.byte();
        const bool plain = (form & 7) < 5;
        const std::string name = input.text(input.byte() % 32), prefix = input.text(form & 128 ? 9 : 0);
        const Bytes content = input.bytes(input.byte());
        std::memcpy(header.data(), name.data(), name.size());
        std::memcpy(&header[kMagicAt], "ustar\00000", 8);
        std::memcpy(&header[kPrefixAt], prefix.data(), prefix.size());
        header[kTypeAt] = plain ? '0' : input.byte();
        if (form & 64) { // the binary size of GNU tar
            header[kSizeAt] = 0x80;
            header[kSizeAt + 11] = uint8_t(content.size());
        } else {
            std::snprintf(reinterpret_cast<char*>(&header[kSizeAt]), 12, "%011zo", content.size());
        }
        if (form & 32) { // arbitrary bytes at an arbitrary position
            const size_t at = input.below(500);
            const Bytes bytes = input.bytes(12);
            std::copy(bytes.begin(), bytes.end(), header.begin() + std::ptrdiff_t(at));
        }
        repair(header.data());
        append(archive, header);
        append_padded(archive, content);

        const auto ordinary = [](char c) { return c > ' ' && c <= '~' && c != '.' && c != '/'; };
        if (!plain || form & 32 || name.empty() || !std::all_of(name.begin(), name.end(), ordinary) ||
            !std::all_of(prefix.begin(), prefix.end(), ordinary))
            expected.reset();
        if (expected) expected->emplace_back(prefix.empty() ? name : prefix + "/" + name, as_text(content));
    }
    archive.resize(archive.size() + 2 * kBlock);
    const auto got = accepted([&] { return read(archive); });
    require(!expected || (got && *got == *expected), "what was put in comes out");
    const Bytes cut = Bytes(archive).first(archive.size() - 2 * kBlock);
    require(!accepted([&] { return read(cut); }), "an end that was cut is found");
}

} // namespace

void fuzz(Input input) {
    const int mode = input.byte() % 3;
    if (mode == 2) return fuzz_members(input);
    const Bytes rest = input.rest();
    Vec archive(rest.begin(), rest.end());
    for (size_t at = 0; mode && at + kBlock <= archive.size(); at += kBlock)
        if (archive[at + kMagicAt] == 'u') repair(&archive[at]);
    accepted([&] { return read(archive); });
}

} // namespace rg::fuzz
