// Recognises the kind of data in a folder.
#include "ringgrad/data/open.h"

#include "ringgrad/data/cifar.h"
#include "ringgrad/data/idx.h"
#include "ringgrad/data/image_folder.h"
#include "ringgrad/data/sample.h"
#include "ringgrad/data/source.h"

#include <filesystem>

namespace rg::data {

namespace {

namespace fs = std::filesystem;

bool holds_records(const std::string& folder) { return find_cifar(folder) != CifarFolder::none || has_idx(folder); }

/// Converts the images of both sets to the channels and the size that the options ask for.
TrainTest converted(TrainTest sets, const LoadOptions& options, const std::string& what) {
    Conversion conversion(options);
    for (ImageSet* const set : {&sets.train, &sets.test}) conversion.convert(*set);
    return described(std::move(sets), what, conversion.text());
}

} // namespace

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

TrainTest load_folder(const std::string& folder, const LoadOptions& options, const std::string& shown) try {
    if (folder.empty()) return converted(sample(), options, "embedded CIFAR-10 sample");
    RG_CHECK(fs::is_directory(folder), "data: expected a folder, got ", fs::exists(folder) ? "a file" : "nothing", " (",
             shown, "); tools/get_cifar10.sh fetches CIFAR-10");
    if (const std::string records = records_folder(folder); !records.empty()) {
        const bool cifar = find_cifar(records) != CifarFolder::none;
        return converted(cifar ? read_cifar(records) : read_idx_sets(records), options,
                         (cifar ? "CIFAR files in " : "IDX files in ") + shown);
    }
    Conversion conversion(options);
    TrainTest sets = ImageFolder(folder, options.skip_other_images).read(conversion);
    for (std::string& warning : conversion.warnings()) sets.warnings.push_back(std::move(warning));
    const std::string what = "images in " + shown;
    if (sets.test.count > 0 && sets.train.count > 0) return described(std::move(sets), what, conversion.text());
    const bool test_alone = sets.train.count == 0;
    RG_CHECK(!test_alone || options.test_fraction == 0, "data: expected images for training, got ", sets.test.count,
             " for testing alone (", shown, ")");
    TrainTest parts =
        split_sets(test_alone ? sets.test : sets.train, options.test_fraction, options.seed, what, conversion.text());
    parts.warnings = std::move(sets.warnings);
    return parts;
} catch (const fs::filesystem_error& error) {
    fail("data: cannot read ", error.path1().string(), ": ", error.code().message());
}

TrainTest load(const std::string& path, const LoadOptions& options) {
    const std::shared_ptr<Copy> copy = copy_source(path, options.cache);
    return load_folder(source_folder(path, options.cache), options, path);
}

} // namespace rg::data
