// decode_checkpoint: files as they are, and files whose opening and checksums are right. What is read is written and
// read again.
#include "core/checkpoint.h"
#include "tests/fuzz/fuzz.h"

namespace rg::fuzz {
namespace {

constexpr int kTensors = 3;

/// The file with the checksums that decode_checkpoint wants: its messages have them. That of the header comes first,
/// and again after each of a tensor.
std::string repaired(std::string file) {
    constexpr std::string_view kExpected = "expected checksum ", kGot = ", got ";
    for (int i = 0; i <= 2 * kTensors; ++i) {
        std::string error;
        accepted([&] { return decode_checkpoint(file, "fuzz"); }, &error);
        const size_t expected = error.find(kExpected), got = error.rfind(kGot);
        if (expected == error.npos) break;
        if (const size_t at = file.find(error.substr(expected + kExpected.size(), 16)); at != file.npos)
            file.replace(at, 16, error, got + kGot.size(), 16);
    }
    return file;
}

} // namespace

void fuzz(Input input) {
    std::string file;
    if (input.byte() & 1) {
        file = input.text();
    } else {
        const bool usual = input.byte() & 1;
        const std::string data(input.below(64), '\x5a'), zeros(16, '0');
        const std::string sums(16 * (input.byte() % (kTensors + 1)), '0');
        const std::string header =
            cat("{\"__metadata__\": {\"format\": \"ringgrad checkpoint 2\", \"checksum\": \"", zeros, "\"",
                usual ? cat(", \"tensor_checksums\": \"", sums, "\"") : "", input.text());
        const uint64_t length = header.size();
        file = repaired(std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data);
    }
    const auto read = accepted([&] { return decode_checkpoint(file, "fuzz"); });
    if (!read) return;
    const LoadedCheckpoint again = decode_checkpoint(encode_checkpoint(read->step, read->state), "again");
    require(again.step == read->step && again.state.metadata == read->state.metadata, "step and metadata");
    require(again.state.tensors.size() == read->state.tensors.size(), "number of tensors");
    for (size_t i = 0; i < again.state.tensors.size(); ++i)
        require(again.state.tensors[i].name == read->state.tensors[i].name, "names");
    // Any other byte is another checksum.
    const size_t at = 8 + (file.size() * 7 / 11) % (file.size() - 8);
    file[at] = char(file[at] ^ 1);
    require(!accepted([&] { return decode_checkpoint(file, "damaged"); }), "damage is found");
}

} // namespace rg::fuzz
