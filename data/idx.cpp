// Checks headers, and finds the four files of MNIST.
#include "data/idx.h"

#include "core/atomic_file.h"
#include "data/inflate.h"

#include <algorithm>
#include <filesystem>
#include <set>

namespace rg::data {

namespace {

constexpr uint8_t kBytesType = 0x08; // the type of values u8

/// One of the four files of MNIST: images or labels, for training or testing.
struct IdxFile {
    bool train;
    const char *what, *type;
    std::string in_mnist() const { return cat(train ? "train-" : "t10k-", what, "-", type, "-ubyte"); }
};
constexpr IdxFile kIdxFiles[] = {
    {true, "images", "idx3"}, {true, "labels", "idx1"}, {false, "images", "idx3"}, {false, "labels", "idx1"}};

/// Returns the sorted names of the folder's files of this kind. If a file has MNIST's own name (or that and .gz),
/// returns only that name. Sets like MNIST add words to the names (emnist-letters-test-labels-idx1-ubyte), or have a
/// point in the place of a hyphen. A .gz is ignored if the same file lies unpacked beside it.
std::vector<std::string> files_of(const std::string& folder, const IdxFile& wanted) {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        const std::string name = entry.path().filename().string();
        const auto has = [&](const char* word) { return name.find(word) != name.npos; };
        const bool part = wanted.train ? has("train") : !has("train") && (has("t10k") || has("test"));
        const bool ends = name.ends_with("ubyte") || name.ends_with("ubyte.gz"); // excludes incomplete downloads
        if (part && has(wanted.what) && has(wanted.type) && ends && !name.starts_with('.') && entry.is_regular_file())
            names.insert(name);
    }
    for (const char* const ending : {"", ".gz"})
        if (const std::string name = wanted.in_mnist() + ending; names.contains(name)) return {name};
    std::vector<std::string> files;
    for (const std::string& name : names)
        if (!name.ends_with(".gz") || !names.contains(name.substr(0, name.size() - 3))) files.push_back(name);
    return files;
}

std::string find_file(const std::string& folder, const IdxFile& wanted) {
    const std::vector<std::string> files = files_of(folder, wanted);
    RG_CHECK(!files.empty(), "idx: expected ", wanted.in_mnist(), " or a file like it, which is missing (", folder,
             ")");
    RG_CHECK(files.size() == 1, "idx: expected one file like ", wanted.in_mnist(), ", got ", files[0], " and ",
             files[1], " (", folder, "); each set needs a folder of its own");
    return folder + "/" + files[0];
}

Tensor read_idx(const std::string& path) { return parse_idx(as_bytes(read_file(path)), path); }

/// Reads images [n height width] and labels [n]. The classes are "0" to the largest label, and at least to "9".
ImageSet read_idx_set(const std::string& images_path, const std::string& labels_path) {
    const Tensor images = read_idx(images_path), labels = read_idx(labels_path);
    RG_CHECK(images.shape().rank() == 3, "idx: expected images [n h w], got ", images.shape().str(), " (", images_path,
             ")");
    RG_CHECK(labels.shape().rank() == 1, "idx: expected labels [n], got ", labels.shape().str(), " (", labels_path,
             ")");
    RG_CHECK(images.extent(0) == labels.extent(0), "idx: expected as many labels as images, ", images.extent(0),
             ", got ", labels.extent(0), " (", labels_path, ")");
    const std::span<uint8_t> pixels = images.span<uint8_t>(), values = labels.span<uint8_t>();
    ImageSet set{images.extent(0), images.extent(1), images.extent(2), 1};
    set.pixels = std::vector<uint8_t>(pixels.begin(), pixels.end());
    set.labels.assign(values.begin(), values.end());
    const int largest = std::max<int>(9, *std::max_element(values.begin(), values.end()));
    for (int i = 0; i <= largest; ++i) set.classes.push_back(std::to_string(i));
    return set;
}

} // namespace

bool is_idx(Bytes bytes) {
    return bytes.size() >= 8 && bytes[0] == 0 && bytes[1] == 0 && bytes[2] == kBytesType && bytes[3] >= 1 &&
           bytes[3] <= 4;
}

Tensor parse_idx(Bytes bytes, const std::string& name) {
    if (is_gzip(bytes)) {
        const std::vector<uint8_t> plain = inflate_gzip(bytes, kMaxIdxBytes, name);
        RG_CHECK(!is_gzip(plain), "idx: expected an IDX file, got one gzipped twice (", name, ")");
        return parse_idx(plain, name);
    }
    RG_CHECK(bytes.size() >= 4, "idx: expected a header of at least 4 bytes, got ", bytes.size(), " (", name, ")");
    RG_CHECK(bytes[0] == 0 && bytes[1] == 0, "idx: expected two bytes of 0, got ", int(bytes[0]), " and ",
             int(bytes[1]), " (", name, ", offset 0)");
    const int rank = bytes[3];
    RG_CHECK(bytes[2] == kBytesType, "idx: expected values of type 8, bytes from 0 to 255, got type ", int(bytes[2]),
             " (", name, ", offset 2)");
    RG_CHECK(rank >= 1 && rank <= 4, "idx: expected 1 to 4 extents, got ", rank, " (", name, ", offset 3)");
    const size_t header = 4 + 4 * size_t(rank);
    RG_CHECK(bytes.size() >= header, "idx: expected a header of ", header, " bytes, got ", bytes.size(), " (", name,
             ")");
    int64_t extents[4], total = 1;
    for (int i = 0; i < rank; ++i) {
        const size_t offset = 4 + 4 * size_t(i);
        extents[i] = load_be32(&bytes[offset]);
        RG_CHECK(extents[i] > 0 && extents[i] <= int64_t(kMaxIdxBytes) / total, "idx: expected extents of 1 to ",
                 kMaxIdxBytes, " bytes in all, got ", extents[i], " (", name, ", offset ", offset, ")");
        total *= extents[i];
    }
    RG_CHECK(bytes.size() - header == size_t(total), "idx: expected ", total, " bytes of values, got ",
             bytes.size() - header, " (", name, ", offset ", header, ")");
    return Tensor::of<uint8_t>(Shape(std::span<const int64_t>(extents, size_t(rank))), bytes.subspan(header));
}

bool has_idx(const std::string& folder) {
    return std::ranges::any_of(kIdxFiles, [&](const IdxFile& wanted) { return !files_of(folder, wanted).empty(); });
}

std::vector<std::string> idx_input_files(const std::string& folder) {
    std::vector<std::string> paths;
    for (const IdxFile& wanted : kIdxFiles) paths.push_back(find_file(folder, wanted));
    return paths;
}

TrainTest read_idx_sets(const std::string& folder) {
    const std::vector<std::string> paths = idx_input_files(folder);
    TrainTest sets{read_idx_set(paths[0], paths[1]), read_idx_set(paths[2], paths[3]), ""};
    ImageSet &a = sets.train, &b = sets.test;
    RG_CHECK(a.height == b.height && a.width == b.width, "idx: expected the size of the training images, ", a.width,
             " x ", a.height, ", got ", b.width, " x ", b.height, " (", folder, ")");
    a.classes = b.classes = std::max(a.classes.size(), b.classes.size()) == a.classes.size() ? a.classes : b.classes;
    return sets;
}

} // namespace rg::data
