// Recognises the kind of data at a path.
#include "ringgrad/data/open.h"

#include "ringgrad/data/cifar.h"
#include "ringgrad/data/idx.h"
#include "ringgrad/data/image_folder.h"
#include "ringgrad/data/sample.h"
#include "ringgrad/data/shards.h"

#include <algorithm>
#include <filesystem>

namespace rg::data {

namespace {

namespace fs = std::filesystem;

/// Returns the number of visible folders directly below a folder.
int64_t count_folders(const std::string& path) {
    return std::count_if(fs::directory_iterator(path), {}, [](const fs::directory_entry& entry) {
        return entry.is_directory() && !is_hidden(entry.path().filename());
    });
}

/// Returns true if a folder exists and has sub-folders, but no .png files beside them. With such files, a folder train/
/// is a class itself.
bool holds_class_folders(const std::string& path) {
    if (!fs::is_directory(path) || count_folders(path) == 0) return false;
    return std::none_of(fs::directory_iterator(path), {}, [](const fs::directory_entry& entry) {
        return lower(entry.path().extension().string()) == ".png";
    });
}

TrainTest load_image_folders(const std::string& path, const LoadOptions& options) {
    Conversion conversion(options);
    const auto read = [&](const std::string& folder, std::vector<std::string> classes) {
        return read_image_folder(folder, conversion, std::move(classes), options.skip_other_images);
    };
    const std::string what = "PNG images in " + path, train = path + "/train";
    for (const char* const name : {"/test", "/val", "/validation"}) {
        const std::string test = path + name;
        if (!fs::is_directory(train) || !fs::is_directory(test)) continue;
        TrainTest sets{read(train, {}), {}, ""};
        sets.test = read(test, sets.train.classes);
        const ImageSet &a = sets.train, &b = sets.test;
        RG_CHECK(a.height == b.height && a.width == b.width, "image folder: expected the size of the training images, ",
                 a.width, " x ", a.height, ", got ", b.width, " x ", b.height, " (", test,
                 "); give --size to resize all images");
        sets.warnings = conversion.warnings();
        return described(std::move(sets), cat(what, " (train and ", name + 1, ")"), conversion.text());
    }
    for (const char* const name : {"/train", "/test", "/val", "/validation"})
        RG_CHECK(!holds_class_folders(path + name) || count_folders(path) > 1, // train may be one class of several
                 "image folder: expected class folders, or both train and test, got ", name + 1, " alone (", path,
                 "); give ", path, name, " to hold out a part of its images for testing");
    const ImageSet set = read(path, {});
    TrainTest sets = split_sets(set, options.test_fraction, options.seed, what, conversion.text());
    sets.warnings = conversion.warnings();
    return sets;
}

/// Converts the images of both sets to the channels and the size that the options ask for.
TrainTest converted(TrainTest sets, const LoadOptions& options, const std::string& what) {
    Conversion conversion(options);
    for (ImageSet* const set : {&sets.train, &sets.test}) conversion.convert(*set);
    return described(std::move(sets), what, conversion.text());
}

} // namespace

TrainTest load(const std::string& path, const LoadOptions& options) try {
    if (path.empty()) return converted(sample(), options, "embedded CIFAR-10 sample");
    if (is_remote(path)) {
        const std::vector<Shard> shards = find_shards(path, options);
        ShardSet set(path, shards, options);
        for (const Shard& shard : shards) set.add(as_bytes(fetch_shard(shard, options.fetch)));
        return set.finish();
    }
    RG_CHECK(fs::is_directory(path), "data: expected a folder, got ", fs::exists(path) ? "a file" : "nothing", " (",
             path, "); tools/get_cifar10.sh fetches CIFAR-10");
    if (find_cifar(path) != CifarFolder::none) return converted(read_cifar(path), options, "CIFAR files in " + path);
    if (has_idx(path)) return converted(read_idx_sets(path), options, "IDX files in " + path);
    // The CIFAR-10 archive unpacks into a subfolder. Users often give the path of its parent folder instead.
    if (const std::string inner = path + "/cifar-10-batches-bin"; find_cifar(inner) != CifarFolder::none)
        return load(inner, options);
    return load_image_folders(path, options);
} catch (const fs::filesystem_error& error) {
    fail("data: cannot read ", error.path1().string(), ": ", error.code().message());
}

} // namespace rg::data
