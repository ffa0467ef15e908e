// See checkpoint.h. safetensors.cpp computes and compares the checksums.
#include "core/checkpoint.h"

#include "core/atomic_file.h"
#include "core/formatted.h"
#include "core/text.h"

#include <algorithm>
#include <filesystem>
#include <new>
#include <optional>

namespace fs = std::filesystem;

namespace rg {
namespace {

constexpr std::string_view kFormat = "ringgrad checkpoint 2";

std::string name_of_step(int64_t step) { return formatted("step-%08lld.safetensors", static_cast<long long>(step)); }

/// Returns the step in a checkpoint's file name, or nothing for any other name.
std::optional<int64_t> step_of_name(const std::string& name) {
    constexpr std::string_view kPrefix = "step-", kSuffix = ".safetensors";
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return {};
    const std::string_view digits = std::string_view(name).substr(kPrefix.size());
    int64_t step = 0;
    const bool good = read_number(digits.substr(0, digits.size() - kSuffix.size()), step) && step >= 0;
    // This comparison rejects other spellings of the same step, such as step-123 instead of step-00000123.
    return good && name == name_of_step(step) ? std::optional(step) : std::nullopt;
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

/// Deletes the temporary files of killed writes, and the checkpoints that save_checkpoint() does not keep after it has
/// written that of step `newest`. Ignores files that it cannot delete: the new checkpoint is already durable.
void delete_old(const std::string& dir, int64_t newest, int keep_last) {
    std::error_code ignored;
    int kept = 0;
    for (int64_t step : steps_in(dir)) {
        // Later steps exist if the run was resumed from an older checkpoint. Their checkpoints are deleted, too.
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

bool is_checkpoint(const TensorFile& file) {
    const std::string* const format = file.find_text("format");
    return format && *format == kFormat;
}

std::string encode_checkpoint(int64_t step, const TensorFile& state) {
    RG_CHECK(step >= 0, "checkpoint: expected a step of at least 0, got ", step);
    Metadata metadata = {{"format", std::string(kFormat)}, {"step", std::to_string(step)}};
    metadata.insert(metadata.end(), state.metadata.begin(), state.metadata.end());
    return encode_tensors(state.tensors, metadata);
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
    LoadedCheckpoint result;
    result.state = decode_tensors(bytes, path);
    RG_CHECK(is_checkpoint(result.state) && result.state.has_checksums, "checkpoint ", path, ": expected format \"",
             kFormat,
             "\" with checksums in the header, got another; the file is not a checkpoint, or has another version");
    result.step = result.state.number("step");
    RG_CHECK(result.step >= 0, "checkpoint ", path, ": expected a step of at least 0, got ", result.step);
    result.path = path;
    std::erase_if(result.state.metadata,
                  [](const auto& entry) { return entry.first == "format" || entry.first == "step"; });
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
