// The command `inspect`; see commands.h. It reads files with the same functions as the training programs.
#include "core/atomic_file.h"
#include "core/checkpoint.h"
#include "core/cpu/cpu_scope.h"
#include "core/options.h"
#include "core/text.h"
#include "core/torch_file.h"
#include "core/user_cache.h"
#include "data/cifar.h"
#include "data/decode.h"
#include "data/idx.h"
#include "data/image_folder.h"
#include "data/inflate.h"
#include "data/jpeg.h"
#include "data/open.h"
#include "data/packed.h"

#include "data/source.h"
#include "models/run/commands.h"
#include "models/run/model_file.h"
#include "models/run/run_folder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <limits>

namespace rg {
namespace {

using data::Bytes;

/// Returns "  NAME  TYPE [SHAPE]  min ..  max ..  mean ..  non-finite .." for the values value(0) to value(n - 1).
/// min, max and mean are those of the finite values; without finite values they are omitted.
template <class Value>
std::string tensor_line(const std::string& name, const char* type, const std::string& shape, int64_t n, Value value) {
    double low = std::numeric_limits<double>::infinity(), high = -low, sum = 0;
    int64_t finite = 0;
    for (int64_t i = 0; i < n; ++i) {
        const double v = double(value(size_t(i)));
        if (!std::isfinite(v)) continue;
        low = std::min(low, v);
        high = std::max(high, v);
        sum += v;
        ++finite;
    }
    std::string text = cat("  ", padded(printable(name), 36), " ", type, " ", shape);
    if (finite) text += cat("  min ", low, "  max ", high, "  mean ", sum / double(finite));
    return text + cat("  non-finite ", n - finite, "\n");
}

std::string tensor_line(const std::string& name, const Tensor& t) {
    const Tensor wide = t.to(DType::f64);
    return tensor_line(name, name_of(t.dtype()), t.shape().str(), t.numel(),
                       [&](size_t i) { return wide.span<double>()[i]; });
}

std::string describe_image(Bytes bytes, const std::string& path) {
    const data::Image image = data::decode_image(bytes, path);
    const bool wide = image.bit_depth == 16;
    std::string text = cat(data::is_png(bytes) ? "PNG, " : "JPEG, ", image.width, " x ", image.height, ", ");
    if (data::is_png(bytes)) {
        // The file can be decoded, so its header (IHDR) is at the fixed position.
        const int depth = bytes[24], colour = bytes[25], interlaced = bytes[28];
        static constexpr const char* kColours[] = {"grey", "", "RGB", "palette", "grey and alpha", "", "RGBA"};
        text += cat(kColours[colour], ", ", depth, " bit", interlaced ? ", interlaced" : "", "\n");
    } else {
        text += image.channels == 1 ? "grey\n" : "colour\n";
    }
    if (!image.damage.empty()) text += cat("  damaged but readable: ", printable(image.damage), "\n");
    return text + tensor_line("pixels", wide ? "u16" : "u8", Shape({image.height, image.width, image.channels}).str(),
                              image.width * image.height * image.channels, [&](size_t i) {
                                  return wide ? image.pixels[2 * i] << 8 | image.pixels[2 * i + 1] : image.pixels[i];
                              });
}

std::string describe_cifar(Bytes bytes, const std::string& path) {
    const data::CifarKind kind = data::cifar_kind(bytes, path);
    const data::ImageSet set = data::parse_cifar({{bytes, path}}, kind);
    const char* name = kind == data::CifarKind::cifar10 ? "CIFAR-10" : "CIFAR-100";
    std::string text = cat(name, ", ", set.count, " records\n");
    text += tensor_line("images", "u8", Shape({set.count, set.height, set.width, set.channels}).str(),
                        set.pixels.size(), [&](size_t i) { return set.pixels.data()[i]; });
    text += tensor_line("labels", "u8", Shape({set.count}).str(), set.count, [&](size_t i) { return set.labels[i]; });
    text += "  per label";
    for (const int64_t count : data::count_per_label(set)) text += cat(" ", count);
    return text + "\n";
}

std::string describe_idx(Bytes bytes, const std::string& path) {
    const Tensor values = data::parse_idx(bytes, path);
    return cat("IDX", data::is_gzip(bytes) ? ", gzipped" : "", "\n", tensor_line("values", values));
}

std::string describe_tensors(Bytes bytes, const std::string& path) {
    const std::string_view text_bytes = data::as_text(bytes);
    const bool is_torch = is_torch_file(text_bytes);
    const TensorFile file = is_torch ? decode_torch_file(text_bytes, path) : decode_tensors(text_bytes, path);
    const std::string kind = is_torch              ? "state dict of PyTorch"
                             : is_checkpoint(file) ? cat("checkpoint of step ", file.number("step"), " (safetensors)")
                                                   : "safetensors";
    int64_t values = 0, size = 0;
    for (const NamedTensor& t : file.tensors) {
        values += t.value.numel();
        size += t.value.bytes();
    }
    std::string text = cat(kind, ", ", file.tensors.size(), " tensors, ", values, " values, ", size, " bytes\n");
    for (const auto& [key, value] : file.metadata) {
        constexpr size_t kShown = 400;
        text += cat("  ", printable(key), " = ", printable(value.substr(0, kShown)), value.size() > kShown ? "..." : "",
                    "\n");
    }
    for (const NamedTensor& t : file.tensors) text += tensor_line(t.name, t.value);
    return text;
}

/// Returns a line about the data set, and a table with the number of training and test images of each class. The
/// numbers of test images are "-" if the set has none. Images of different sizes are counted, too.
std::string describe_set(const std::string& path, data::LoadOptions options) {
    const CpuScope all_cores;
    data::TrainTest sets;
    try {
        sets = data::load(path, options);
    } catch (const data::SizesDiffer&) {
        options.height = options.width = 1;                         // for the counts alone
        if (!data::is_remote(path)) options.cache = data::kNoCache; // remote data are already copied into the cache
        sets = data::load(path, options);
        sets.source = path + ": images of different sizes; training programs need --size, such as --size 64";
    }
    std::string text = printable(sets.source) + "\n";
    for (const std::string& warning : sets.warnings) text += printable(warning) + "\n";
    return text + data::class_table(sets, "test");
}

/// Returns the paths of the packed sets in a folder, or the path itself if it is one.
std::vector<std::string> packed_sets_of(const std::string& path) {
    if (!std::filesystem::is_directory(path)) return std::vector<std::string>(data::is_packed(path), path);
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(path))
        if (data::is_packed(entry.path())) paths.push_back(entry.path().string());
    std::sort(paths.begin(), paths.end());
    return paths;
}

/// Returns a line about a packed set, which may be damaged.
std::string describe_packed(const std::string& path) try {
    data::SourceImages contents = data::read_packed(path);
    const data::TrainTest sets =
        data::with_source(std::move(contents.sets), contents.kind + contents.packed_from, contents.note);
    return printable(
               cat(path, ": packed set, ", std::filesystem::file_size(path) / 1'000'000, " MB, of ", sets.source)) +
           "\n";
} catch (const Error& error) {
    return printable(cat(path, ": ", error.what())) + "\n";
}

bool is_tensor_file(Bytes bytes) {
    uint64_t header = 0;
    if (bytes.size() < 10) return false;
    std::memcpy(&header, bytes.data(), sizeof header);
    return header <= uint64_t(kMaxTensorHeader) && bytes[8] == '{';
}

/// Returns the description of a file with these bytes. `path` is for error messages. If the bytes are not recognised,
/// the ending of `path` chooses the reader.
std::string describe(Bytes bytes, const std::string& path) {
    if (data::is_png(bytes) || data::is_jpeg(bytes)) return describe_image(bytes, path);
    if (is_tensor_file(bytes) || is_torch_file(data::as_text(bytes))) return describe_tensors(bytes, path);
    if (data::is_gzip(bytes) || data::is_idx(bytes)) return describe_idx(bytes, path);
    // A model with a damaged header is not recognised, and CIFAR records (.bin) have no mark in their contents.
    if (path.ends_with(".safetensors")) return describe_tensors(bytes, path);
    RG_CHECK(path.ends_with(".bin"),
             "inspect: expected a PNG, JPEG, CIFAR (.bin), IDX, safetensors or PyTorch file, got another (", path, ")");
    return describe_cifar(bytes, path);
}

} // namespace

int inspect_command(par::Group&, const std::string& name, const std::vector<std::string>& args) {
    std::string size;
    std::vector<std::string> paths;
    bool remove = false;
    data::LoadOptions load_options{.test_fraction = 0, .cache = ""};
    Options options(name, "describes the contents of files of images and models, and of sets of images");
    options.add_examples({"~/photos --size 32", default_runs_folder() + "/NAME/model.safetensors"});
    options.positional(
        "FILE", &paths,
        "files to describe; sets of images as for --data: folders, s3: or pipe:; or a folder of packed sets", 1);
    options.add("size", &size, "size to which sets of images are resized (default: as they are)").metavar("H[xW]");
    data::declare_reading(options, load_options);
    options.add("delete", &remove, "delete the packed sets that FILE names, such as ~/.cache/ringgrad");
    if (!options.parse(args)) return options.print_help_or_version();
    const auto [height, width] = data::parse_size(size);
    load_options.height = height, load_options.width = width;
    for (std::string path : paths) {
        if (std::error_code none; std::filesystem::equivalent(path, user_cache(), none)) data::clean_cache(path);
        if (std::filesystem::exists(path + "/model.safetensors")) path = model_path(path); // the folder of a run
        const bool is_set = data::is_remote(path) || std::filesystem::is_directory(path);
        const std::vector<std::string> packed = packed_sets_of(path);
        RG_CHECK(!remove || !packed.empty(), "--delete: expected packed sets, got none (", path, ")");
        for (const std::string& set : packed) {
            std::cout << describe_packed(set);
            if (remove) std::filesystem::remove(set), std::cout << "  deleted\n";
        }
        if (!packed.empty()) continue;
        const std::string file = is_set ? "" : read_file(path, kMaxTensorFile);
        std::cout << (is_set ? describe_set(path, load_options)
                             : cat(printable(path), ": ", describe(data::as_bytes(file), path)));
    }
    return 0;
}

} // namespace rg
