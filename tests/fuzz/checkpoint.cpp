// Fuzzes decode_checkpoint with unchanged files, and with files whose begin and checksums are correct. Writes accepted
// checkpoints and reads them again.
#include "core/checkpoint.h"
#include "tests/fuzz/fuzz.h"

namespace rg::fuzz {
namespace {

constexpr int kTensors = 3;

/// Returns the file with correct checksums, which the errors of decode_checkpoint state. The checksum of the header is
/// the first, and changes with each checksum of a tensor.
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
    // A change of any byte changes a checksum.
    const size_t at = 8 + (file.size() * 7 / 11) % (file.size() - 8);
    file[at] = char(file[at] ^ 1);
    require(!accepted([&] { return decode_checkpoint(file, "damaged"); }), "damage is found");
}

} // namespace rg::fuzz
