// Recognises the kind of data in a folder.
#include "data/open.h"

#include "core/cpu/cpu_scope.h"
#include "core/text.h"
#include "data/cifar.h"
#include "data/idx.h"
#include "data/image_folder.h"
#include "data/packed.h"
#include "data/sample.h"
#include "data/source.h"

#include <filesystem>
#include <iostream>

namespace rg::data {

namespace {

namespace fs = std::filesystem;

bool holds_records(const std::string& folder) { return has_cifar(folder) || has_idx(folder); }

/// Returns the folder that holds CIFAR or IDX files, or "" if there is none: this folder, one with a usual name in it,
/// or one in a chain of folders that each hold nothing but the next.
std::string records_folder(const std::string& folder) {
    // Archives unpack into a folder of their own. Users often give the path of its parent folder instead.
    for (const char* const inner : {"", "/cifar-10-batches-bin", "/cifar-100-binary", "/MNIST/raw", "/raw"})
        if (fs::is_directory(folder + inner) && holds_records(folder + inner)) return folder + inner;
    std::string outermost = folder;
    for (int depth = 0; depth < 8; ++depth) {
        std::string only;
        for (const fs::directory_entry& entry : fs::directory_iterator(outermost)) {
            if (entry.path().filename().string().starts_with('.')) continue;
            if (!only.empty() || !entry.is_directory()) return "";
            only = entry.path().string();
        }
        if (only.empty()) return "";
        if (holds_records(only)) return only;
        outermost = only;
    }
    return "";
}

/// Returns the paths of all files and folders that read_folder() depends on.
std::vector<std::string> parts_of(const std::string& folder) {
    const std::string records = records_folder(folder);
    if (records.empty()) return image_parts(folder);
    return has_cifar(records) ? cifar_input_files(records) : idx_input_files(records);
}

/// Reads a folder, or the embedded sample if `folder` is empty. The pixels go to `sink`, or to memory if it is null.
SourceImages read_folder(const std::string& folder, const LoadOptions& options, PixelSink* sink) {
    Conversion conversion(options, sink);
    SourceImages contents;
    const std::string records = folder.empty() ? "" : records_folder(folder);
    if (folder.empty() || !records.empty()) {
        const bool cifar = !records.empty() && has_cifar(records);
        contents.sets = records.empty() ? sample() : cifar ? read_cifar(records) : read_idx_sets(records);
        contents.kind = records.empty() ? "embedded CIFAR-10 sample" : cifar ? "CIFAR files in " : "IDX files in ";
        conversion.convert(contents.sets);
    } else {
        for (const char* const python : {"/data_batch_1", "/cifar-10-batches-py", "/cifar-100-python"})
            RG_CHECK(!fs::exists(folder + python), "data: expected images, got CIFAR's version for Python (", folder,
                     python, "); get the binary version, e.g. with tools/get_cifar10.sh");
        contents.sets = read_images(folder, options, conversion);
        contents.kind = "images in ";
        for (std::string& warning : conversion.warnings()) contents.sets.warnings.push_back(std::move(warning));
        contents.sets.left_out = conversion.left_out();
    }
    contents.note = conversion.text();
    return contents;
}

void check_folder(const std::string& folder, const std::string& shown) {
    RG_CHECK(fs::is_directory(folder), "data: expected a folder, got ", fs::exists(folder) ? "a file" : "nothing", " (",
             shown, "); tools/get_cifar10.sh fetches CIFAR-10");
}

} // namespace

void declare_reading(Options& options, LoadOptions& reading) {
    options
        .add("cache", &reading.cache,
             cat("folder for decoded images and copies of s3: and pipe:, which later runs use again; none: keep all "
                 "images in the memory of each rank",
                 reading.cache.empty() ? " (default: ~/.cache/ringgrad, with a new copy of pipe: in each run)"
                                       : "; for the images of a run, the default is that of the run"))
        .metavar("DIR")
        .by_rank();
    options.add(
        "skip-other-images", &reading.skip_other_images,
        "leave out images of other formats than PNG and JPEG, and damaged files, which are an error without this "
        "option; skipped.txt in the folder of a run names them");
    options.add("label-from", &reading.label_from, {{"top", LabelFrom::top}, {"parent", LabelFrom::parent}},
                "folder that gives an image its class, without labels.csv; top: the outermost; parent: the innermost");
}

Source open_source(const std::string& path, const LoadOptions& options) try {
    Source source;
    source.locks.push_back(copy_source(path, options.cache));
    source.path = source_folder(path, options.cache);
    if (source.path.empty() || source.path.ends_with(kPackedEnding) || options.cache == kNoCache) return source;
    check_folder(source.path, path);
    try {
        const std::string cache = cache_folder(options.cache), data = fs::canonical(source.path) / "";
        std::error_code none; // make_cache() says what is wrong
        RG_CHECK(!(fs::weakly_canonical(cache, none) / "").string().starts_with(data),
                 "cache: expected a folder outside of the data, got ", cache, " in ", path, "; choose another --cache");
        make_cache(cache);
    } catch (const Error& error) {
        if (!options.cache.empty()) throw;
        std::cerr << "warning: " << printable(error.what()) << "; all images are kept in memory\n";
        return source;
    }
    const CpuScope all_cores;
    const std::string folder = source.path;
    const std::string& shown = path.starts_with("pipe:") ? folder : path; // a command may contain a secret
    source.path = find_or_pack(
        folder, shown, options, source.locks.emplace_back(), [&] { return parts_of(folder); },
        [&](PixelSink& sink) { return read_folder(folder, options, &sink); });
    return source;
} catch (const fs::filesystem_error& error) {
    fail("data: cannot read ", error.path1().string(), ": ", error.code().message());
}

TrainTest load_source(const std::string& path, const LoadOptions& options, const std::string& shown) try {
    const bool packed = path.ends_with(kPackedEnding) && !fs::is_directory(path);
    if (!packed && !path.empty()) check_folder(path, shown);
    SourceImages contents = packed ? read_packed(path) : read_folder(path, options, nullptr);
    const std::string what = contents.kind + shown;
    TrainTest& sets = contents.sets;
    const ImageSet& set = sets.train.count > 0 ? sets.train : sets.test;
    RG_CHECK(!packed || (set.channels == options.channels && (options.height == 0 || options.height == set.height) &&
                         (options.width == 0 || options.width == set.width)),
             "data: expected images of ", options.height, "x", options.width, "x", options.channels, ", got ",
             set.height, "x", set.width, "x", set.channels, " in a packed set (", path,
             "); give the folder that it was made from");
    if (sets.test.count > 0 && sets.train.count > 0) return with_source(std::move(sets), what, contents.note);
    RG_CHECK(sets.train.count > 0 || options.test_fraction == 0, "data: expected images for training, got ",
             sets.test.count, " for testing alone (", shown, ")");
    TrainTest parts =
        split_sets(set, options.test_fraction, options.held_out.or_new("test", options.seed), what, contents.note);
    parts.warnings.insert(parts.warnings.begin(), sets.warnings.begin(), sets.warnings.end());
    parts.left_out = std::move(sets.left_out);
    return parts;
} catch (const fs::filesystem_error& error) {
    fail("data: cannot read ", error.path1().string(), ": ", error.code().message());
}

TrainTest load(const std::string& path, const LoadOptions& options) {
    const Source source = open_source(path, options);
    return load_source(source.path, options, path);
}

} // namespace rg::data
