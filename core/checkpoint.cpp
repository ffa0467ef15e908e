// The header holds a checksum of each tensor, and a checksum of the header itself. The writer encodes the header with
// 16 zeros in place of the header's checksum, computes the checksum, and puts it in place of the zeros. The reader
// replaces these digits by zeros again, computes the checksum, and compares it with the digits.
//
// The digits have a fixed offset: a file begins with the 8-byte length of the header, followed by the bytes of
// kOpening. The header's checksum covers these 8 bytes and all of the header except the digits themselves. Every byte
// of the data belongs to a tensor (safetensors.h), so the checksums together cover the whole file.
#include "ringgrad/core/checkpoint.h"

#include "ringgrad/core/atomic_file.h"
#include "ringgrad/core/checksum.h"
#include "ringgrad/core/formatted.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <new>
#include <optional>

namespace fs = std::filesystem;

namespace rg {
namespace {

constexpr std::string_view kFormat = "ringgrad checkpoint 2";
constexpr std::string_view kOpening = "{\"__metadata__\": {\"format\": \"ringgrad checkpoint 2\", \"checksum\": \"";
constexpr size_t kLengthBytes = 8, kDigits = 16, kDigitsOffset = kLengthBytes + kOpening.size();
constexpr std::string_view kPrefix = "step-", kSuffix = ".safetensors";
constexpr std::string_view kReserved[] = {"format", "checksum", "tensor_checksums",
                                          "step"}; // metadata keys that the caller must not use

std::string hex(uint64_t value) { return formatted("%016llx", static_cast<unsigned long long>(value)); }

/// Returns the header's checksum as 16 digits. `bytes` are the first 8 bytes of a file and its header. The checksum's
/// own digits in `bytes` count as zeros.
std::string header_checksum(std::string_view bytes) {
    std::string header(bytes);
    header.replace(kDigitsOffset, kDigits, kDigits, '0');
    return hex(checksum(header));
}

std::string tensor_checksum(const Tensor& t) {
    return hex(t.bytes() ? checksum({reinterpret_cast<const char*>(t.bytes_data()), size_t(t.bytes())}) : 0);
}

/// Returns the number of bytes before the data of a file: 8 bytes that hold the header's length, and the header.
/// Returns the size of the file if that is smaller.
size_t header_size(std::string_view bytes) {
    uint64_t length = 0;
    if (bytes.size() >= kLengthBytes) std::memcpy(&length, bytes.data(), kLengthBytes);
    return length <= bytes.size() ? std::min(kLengthBytes + size_t(length), bytes.size()) : bytes.size();
}

std::string name_of_step(int64_t step) { return formatted("step-%08lld.safetensors", static_cast<long long>(step)); }

/// Returns the step in a checkpoint's file name, or nothing for any other name.
std::optional<int64_t> step_of_name(const std::string& name) {
    if (name.size() <= kPrefix.size() + kSuffix.size()) return {};
    int64_t step = 0;
    for (char c : name.substr(kPrefix.size(), std::min<size_t>(name.size() - kPrefix.size() - kSuffix.size(), 18))) {
        if (c < '0' || c > '9') return {};
        step = step * 10 + (c - '0');
    }
    // This comparison rejects other spellings of the same step, such as step-123 instead of step-00000123.
    return name == name_of_step(step) ? std::optional(step) : std::nullopt;
}

/// Returns the steps of all checkpoints in a folder, the newest first. Reads only file names.
std::vector<int64_t> steps_in(const std::string& dir) {
    std::error_code error;
    std::vector<int64_t> steps;
    for (fs::directory_iterator at(dir, error), end; !error && at != end; at.increment(error))
        if (const auto step = step_of_name(at->path().filename().string())) steps.push_back(*step);
    RG_CHECK(!error, "checkpoint: cannot read the folder ", dir, ": ", error.message());
    std::sort(steps.rbegin(), steps.rend());
    return steps;
}

/// Deletes leftovers, and the checkpoints that save_checkpoint() does not keep after writing that of step `newest`.
/// Ignores files that it cannot delete: the new checkpoint is already durable.
void delete_old(const std::string& dir, int64_t newest, int keep_last) {
    std::error_code ignored;
    int kept = 0;
    for (int64_t step : steps_in(dir)) {
        // If the run was resumed from an older checkpoint, there may be checkpoints of steps after `newest`: delete
        // them.
        if (step > newest || ++kept > keep_last) fs::remove(fs::path(dir) / name_of_step(step), ignored);
    }
    std::vector<fs::path> leftovers;
    for (fs::directory_iterator at(dir, ignored), end; !ignored && at != end; at.increment(ignored)) {
        const std::string name = at->path().filename().string();
        const size_t mark = name.find(kTempMark);
        if (mark != std::string::npos && step_of_name(name.substr(0, mark))) leftovers.push_back(at->path());
    }
    for (const fs::path& path : leftovers) fs::remove(path, ignored);
}

} // namespace

std::string encode_checkpoint(int64_t step, const TensorFile& state) {
    RG_CHECK(step >= 0, "checkpoint: expected a step of at least 0, got ", step);
    std::string sums;
    for (const NamedTensor& t : state.tensors) sums += tensor_checksum(t.value);
    Metadata metadata = {{"format", std::string(kFormat)},
                         {"checksum", std::string(kDigits, '0')},
                         {"tensor_checksums", sums},
                         {"step", std::to_string(step)}};
    metadata.insert(metadata.end(), state.metadata.begin(), state.metadata.end());
    std::string bytes = encode_tensors(state.tensors, metadata);
    bytes.replace(kDigitsOffset, kDigits, header_checksum(std::string_view(bytes).substr(0, header_size(bytes))));
    return bytes;
}

std::string save_checkpoint(const std::string& dir, int64_t step, const TensorFile& state, int keep_last) {
    RG_CHECK(keep_last >= 1, "checkpoint: expected to keep at least 1, got ", keep_last);
    const std::string bytes = encode_checkpoint(step, state);
    std::error_code error;
    fs::create_directory(dir, error);
    RG_CHECK(!error, "checkpoint: cannot create the folder ", dir, ": ", error.message());
    const std::string path = (fs::path(dir) / name_of_step(step)).string();
    write_file_atomic(path, bytes);
    delete_old(dir, step, keep_last);
    return path;
}

LoadedCheckpoint decode_checkpoint(const std::string& bytes, const std::string& path) {
    const std::string_view header = std::string_view(bytes).substr(0, header_size(bytes));
    const auto compare = [&](const std::string& part, const std::string& expected, const std::string& actual) {
        RG_CHECK(expected == actual, "checkpoint ", path, ": expected checksum ", expected, " of ", part, ", got ",
                 actual, "; the file is damaged there (", bytes.size(), " bytes)");
    };
    RG_CHECK(header.size() >= kDigitsOffset + kDigits && header.substr(kLengthBytes, kOpening.size()) == kOpening,
             "checkpoint ", path, ": expected a header that begins with format \"", kFormat,
             "\", got another; the file is not a checkpoint, has another version, or is damaged there");
    compare("the header", std::string(header.substr(kDigitsOffset, kDigits)), header_checksum(header));
    LoadedCheckpoint result;
    result.state = decode_tensors(bytes, path);
    const std::string& sums = result.state.text("tensor_checksums");
    RG_CHECK(sums.size() == kDigits * result.state.tensors.size(), "checkpoint ", path,
             ": expected a checksum of each of ", result.state.tensors.size(), " tensors, got ", sums.size(),
             " digits");
    for (size_t i = 0; const auto& [name, value] : result.state.tensors)
        compare("tensor " + name, sums.substr(kDigits * i++, kDigits), tensor_checksum(value));
    result.step = result.state.number("step");
    RG_CHECK(result.step >= 0, "checkpoint ", path, ": expected a step of at least 0, got ", result.step);
    result.path = path;
    std::erase_if(result.state.metadata, [](const auto& entry) {
        return std::find(std::begin(kReserved), std::end(kReserved), entry.first) != std::end(kReserved);
    });
    return result;
}

LoadedCheckpoint load_checkpoint(const std::string& path) {
    const std::string bytes = read_file(path, kMaxTensorFile);
    try {
        return decode_checkpoint(bytes, path);
    } catch (const std::bad_alloc&) {
        fail("checkpoint ", path, ": expected memory for two copies of its ", bytes.size(), " bytes, got less");
    }
}

LoadedCheckpoint load_latest_checkpoint(const std::string& dir) {
    std::error_code error;
    RG_CHECK(fs::is_directory(dir, error), "checkpoint: no folder ", dir, "; nothing to resume from");
    const std::vector<int64_t> steps = steps_in(dir);
    RG_CHECK(!steps.empty(), "checkpoint: expected at least one in ", dir, ", got none; nothing to resume from");
    std::vector<std::string> reasons;
    for (int64_t step : steps) {
        try {
            LoadedCheckpoint loaded = load_checkpoint((fs::path(dir) / name_of_step(step)).string());
            for (const std::string& reason : reasons)
                loaded.warnings.push_back(cat("warning: ", reason, "; using ", name_of_step(loaded.step), " instead"));
            return loaded;
        } catch (const Error& error) {
            reasons.emplace_back(error.what());
        }
    }
    std::string all_reasons;
    for (const std::string& reason : reasons) all_reasons += (all_reasons.empty() ? "" : " | ") + reason;
    fail("checkpoint: none of the ", steps.size(), " in ", dir, " can be loaded: ", all_reasons);
}

} // namespace rg
