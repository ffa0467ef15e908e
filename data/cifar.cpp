// Reads CIFAR binary files. All sizes and labels are checked before anything is returned, because the format has no
// header that would reveal a wrong file.
#include "data/cifar.h"

#include "core/atomic_file.h"
#include "core/text.h"

#include <filesystem>

namespace rg::data {

namespace {

namespace fs = std::filesystem;

constexpr size_t kPlane = 32 * 32, kPixels = 3 * kPlane;

size_t label_bytes(CifarKind kind) { return kind == CifarKind::cifar10 ? 1 : 2; }
size_t record_bytes(CifarKind kind) { return label_bytes(kind) + kPixels; }

constexpr const char *kNames = "/batches.meta.txt", *kFineNames = "/fine_label_names.txt";

/// If the folder has a file of a CIFAR set, returns the names of all files of images that this set has. Otherwise,
/// returns none.
std::vector<std::string> expected_files(const std::string& folder) {
    static const std::vector<std::string> kSets[] = {{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                                      "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"},
                                                     {"train.bin", "test.bin"}};
    for (const std::vector<std::string>& names : kSets)
        for (const std::string& name : names)
            if (fs::exists(folder + "/" + name)) return names;
    return {};
}

} // namespace

std::vector<std::string> class_names(CifarKind kind) {
    if (kind == CifarKind::cifar10)
        return {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};
    std::vector<std::string> names;
    for (int i = 0; i < 100; ++i) names.push_back(cat("class ", i));
    return names;
}

ImageSet parse_cifar(const std::vector<CifarFile>& files, CifarKind kind) {
    ImageSet set{0, 32, 32, 3, {}, {}, class_names(kind)};
    const size_t record = record_bytes(kind), classes = set.classes.size();
    for (const auto& [bytes, name] : files) {
        RG_CHECK(!bytes.empty() && bytes.size() % record == 0, "cifar: expected a multiple of ", record, " bytes, got ",
                 bytes.size(), " (", name, ", partial record at offset ", bytes.size() / record * record, ")");
        set.count += int64_t(bytes.size() / record);
    }
    std::vector<uint8_t> pixels(size_t(set.count) * kPixels);
    uint8_t* to = pixels.data();
    for (const auto& [bytes, name] : files)
        for (size_t i = 0; i < bytes.size() / record; ++i, to += kPixels) {
            const size_t label_offset = i * record + label_bytes(kind) - 1;
            RG_CHECK(bytes[label_offset] < classes, "cifar: expected labels of 0 to ", classes - 1, ", got ",
                     int(bytes[label_offset]), " (", name, ", record ", i, ", offset ", label_offset, ")");
            set.labels.push_back(bytes[label_offset]);
            const uint8_t* from = bytes.data() + label_offset + 1;
            for (size_t p = 0; p < kPlane; ++p)
                for (size_t c = 0; c < 3; ++c) to[3 * p + c] = from[c * kPlane + p];
        }
    set.pixels = std::move(pixels);
    return set;
}

CifarKind cifar_kind(Bytes bytes, const std::string& name) {
    for (const CifarKind kind : {CifarKind::cifar10, CifarKind::cifar100})
        if (!bytes.empty() && bytes.size() % record_bytes(kind) == 0) return kind;
    fail("cifar: expected a multiple of ", record_bytes(CifarKind::cifar10), " (CIFAR-10) or ",
         record_bytes(CifarKind::cifar100), " bytes (CIFAR-100), got ", bytes.size(), " (", name, ")");
}

bool has_cifar(const std::string& folder) { return !expected_files(folder).empty(); }

std::vector<std::string> cifar_input_files(const std::string& folder) {
    std::vector<std::string> files;
    for (const std::string& name : expected_files(folder)) {
        files.push_back(folder + "/" + name);
        RG_CHECK(fs::exists(files.back()), "cifar: expected ", name, ", which is missing (", folder,
                 "); tools/get_cifar10.sh fetches the whole set");
    }
    for (const char* const names : {kNames, kFineNames})
        if (fs::exists(folder + names)) files.push_back(folder + names);
    return files;
}

TrainTest read_cifar(const std::string& folder) {
    std::vector<std::string> files = cifar_input_files(folder), contents;
    std::erase_if(files, [](const std::string& file) { return !file.ends_with(".bin"); });
    for (const std::string& file : files) contents.push_back(read_file(file));
    const CifarKind kind = cifar_kind(as_bytes(contents[0]), files[0]);
    std::vector<CifarFile> parts;
    for (size_t i = 0; i < files.size(); ++i) parts.push_back({as_bytes(contents[i]), files[i]});
    const CifarFile test = parts.back();
    parts.pop_back();
    TrainTest sets{parse_cifar(parts, kind), parse_cifar({test}, kind), ""};
    const std::string names_file = folder + (kind == CifarKind::cifar10 ? kNames : kFineNames);
    std::vector<std::string> names;
    if (fs::exists(names_file))
        for (const std::string& line : split(read_file(names_file), '\n'))
            if (const std::string_view name = trimmed(line); !name.empty()) names.emplace_back(name);
    if (!names.empty()) {
        RG_CHECK(names.size() == sets.train.classes.size(), "cifar: expected ", sets.train.classes.size(),
                 " class names, got ", names.size(), " (", names_file, ")");
        sets.train.classes = sets.test.classes = std::move(names);
    }
    return sets;
}

} // namespace rg::data
