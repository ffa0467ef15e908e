// Reads CIFAR binary files. All sizes and labels are checked before anything is returned, because the format has no
// header that would reveal a wrong file.
#include "ringgrad/data/cifar.h"

#include "ringgrad/core/atomic_file.h"

#include <filesystem>

namespace rg::data {

namespace {

constexpr size_t kPlane = 32 * 32, kPixels = 3 * kPlane;

size_t label_bytes(CifarKind kind) { return kind == CifarKind::cifar10 ? 1 : 2; }
size_t record_bytes(CifarKind kind) { return label_bytes(kind) + kPixels; }

std::string batch_name(int i) { return i == 6 ? "test_batch.bin" : cat("data_batch_", i, ".bin"); }

std::string require_file(const std::string& folder, const std::string& name) {
    const std::string path = folder + "/" + name;
    RG_CHECK(std::filesystem::exists(path), "cifar: expected ", name, ", which is missing (", folder,
             "); tools/get_cifar10.sh fetches the whole set");
    return path;
}

} // namespace

std::vector<std::string> class_names(CifarKind kind) {
    if (kind == CifarKind::cifar10)
        return {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};
    std::vector<std::string> names;
    for (int i = 0; i < 100; ++i) names.push_back(cat("class ", i));
    return names;
}

std::vector<std::string> parse_class_names(std::string_view text) {
    std::vector<std::string> names(1);
    for (const char byte : text) {
        if (byte == '\n' && !names.back().empty()) names.emplace_back();
        if (byte != '\n' && byte != '\r') names.back().push_back(byte);
    }
    if (names.back().empty()) names.pop_back();
    return names;
}

ImageSet parse_cifar(Bytes bytes, CifarKind kind, const std::string& name) {
    ImageSet set;
    append_cifar(set, bytes, kind, name);
    return set;
}

void append_cifar(ImageSet& set, Bytes bytes, CifarKind kind, const std::string& name) {
    if (set.classes.empty())
        set = {0, 32, 32, 3, std::move(set.pixels), {}, class_names(kind)}; // keeps reserved memory
    const size_t record = record_bytes(kind), classes = set.classes.size();
    RG_CHECK(!bytes.empty() && bytes.size() % record == 0, "cifar: expected a multiple of ", record, " bytes, got ",
             bytes.size(), " (", name, ", partial record at offset ", bytes.size() / record * record, ")");
    const size_t records = bytes.size() / record, before = set.pixels.size();
    set.count += int64_t(records);
    set.pixels.resize(before + records * kPixels);
    uint8_t* to = set.pixels.data() + before;
    for (size_t i = 0; i < records; ++i, to += kPixels) {
        const size_t label_offset = i * record + label_bytes(kind) - 1;
        RG_CHECK(bytes[label_offset] < classes, "cifar: expected labels of 0 to ", classes - 1, ", got ",
                 int(bytes[label_offset]), " (", name, ", record ", i, ", offset ", label_offset, ")");
        set.labels.push_back(bytes[label_offset]);
        const uint8_t* from = bytes.data() + label_offset + 1;
        for (size_t p = 0; p < kPlane; ++p)
            for (size_t c = 0; c < 3; ++c) to[3 * p + c] = from[c * kPlane + p];
    }
}

CifarKind cifar_kind(Bytes bytes, const std::string& name) {
    for (const CifarKind kind : {CifarKind::cifar10, CifarKind::cifar100})
        if (!bytes.empty() && bytes.size() % record_bytes(kind) == 0) return kind;
    fail("cifar: expected a multiple of ", record_bytes(CifarKind::cifar10), " (CIFAR-10) or ",
         record_bytes(CifarKind::cifar100), " bytes (CIFAR-100), got ", bytes.size(), " (", name, ")");
}

CifarFolder find_cifar(const std::string& folder) {
    const auto has = [&](const std::string& name) { return std::filesystem::exists(folder + "/" + name); };
    for (int i = 1; i <= 6; ++i)
        if (has(batch_name(i))) return CifarFolder::cifar10;
    return has("train.bin") || has("test.bin") ? CifarFolder::pair : CifarFolder::none;
}

TrainTest read_cifar(const std::string& folder) {
    const bool is_cifar10 = find_cifar(folder) == CifarFolder::cifar10;
    std::vector<std::string> files;
    for (int i = 1; i <= 6 && is_cifar10; ++i) files.push_back(require_file(folder, batch_name(i)));
    if (!is_cifar10) files = {require_file(folder, "train.bin"), require_file(folder, "test.bin")};
    CifarKind kind = CifarKind::cifar10;
    TrainTest sets;
    if (is_cifar10) sets.train.pixels.reserve(size_t{50000} * kPixels);
    for (const std::string& file : files) {
        const std::string bytes = read_file(file);
        if (!is_cifar10 && file == files[0]) kind = cifar_kind(as_bytes(bytes), file);
        append_cifar(file == files.back() ? sets.test : sets.train, as_bytes(bytes), kind, file);
    }
    const std::string names_file =
        folder + (kind == CifarKind::cifar10 ? "/batches.meta.txt" : "/fine_label_names.txt");
    std::vector<std::string> names;
    if (std::filesystem::exists(names_file)) names = parse_class_names(read_file(names_file));
    if (!names.empty()) {
        RG_CHECK(names.size() == sets.train.classes.size(), "cifar: expected ", sets.train.classes.size(),
                 " class names, got ", names.size(), " (", names_file, ")");
        sets.train.classes = sets.test.classes = std::move(names);
    }
    return sets;
}

} // namespace rg::data
