// Helpers for tests that compare sets of images, and the mini-batches of loaders.
#pragma once

#include "core/atomic_file.h"
#include "core/rng.h"
#include "data/augment.h"
#include "data/decode.h"
#include "data/loader.h"
#include "data/open.h"
#include "data/png.h"

#include <filesystem>
#include <memory>

namespace rg::data {

/// Returns images of random bytes, with random labels of three classes.
inline ImageSet random_set(int64_t count, int64_t h, int64_t w, int64_t c) {
    Rng rng(uint64_t(count), Purpose::test);
    std::vector<uint8_t> pixels(static_cast<size_t>(count * h * w * c));
    for (uint8_t& pixel : pixels) pixel = uint8_t(rng.next());
    ImageSet set{count, h, w, c, std::move(pixels), {}, {"a", "b", "c"}};
    for (int64_t i = 0; i < count; ++i) set.labels.push_back(int32_t(rng.uniform_below(3)));
    return set;
}

/// Returns the pixels of all images of a set, in order.
inline std::vector<uint8_t> pixels_of(const ImageSet& set) { return copy_pixels(set, 0, set.count); }

/// Writes an image of 8 bits per sample as a PNG, and makes the folders above it.
inline void write_image(const std::string& path, int64_t width, int64_t height, int channels,
                        const std::vector<uint8_t>& pixels) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    write_file_atomic(path, as_text(encode_png(width, height, channels, pixels)));
}

/// Returns all images of a folder.
inline ImageSet read_image_folder(const std::string& folder, int channels, bool skip_other_images = false) {
    return load(folder, {.channels = channels, .test_fraction = 0, .skip_other_images = skip_other_images}).train;
}

/// Holds the images, labels, weights and targets of mini-batches, in order.
struct Epoch {
    std::vector<std::vector<float>> images;
    std::vector<int32_t> labels, second_labels;
    std::vector<float> weights, second_weights, targets;
    bool operator==(const Epoch&) const = default;

    void add(const Batch& batch) {
        const auto append = [](auto& to, const Tensor& from) {
            using T = typename std::decay_t<decltype(to)>::value_type;
            if (from.defined()) to.insert(to.end(), from.data<T>(), from.data<T>() + from.numel());
        };
        const int64_t size = batch.size ? batch.x.numel() / batch.size : 0;
        for (int64_t i = 0; i < batch.size; ++i)
            images.emplace_back(batch.x.data<float>() + i * size, batch.x.data<float>() + (i + 1) * size);
        append(labels, batch.labels), append(second_labels, batch.second_labels);
        append(weights, batch.label_weights), append(second_weights, batch.second_weights);
        append(targets, batch.targets);
    }
};

/// Returns the samples of an epoch whose mini-batches are divided among `ranks` ranks. The samples of rank 0 come first
/// in each mini-batch.
inline Epoch epoch_of(const ImageSet& set, LoaderOptions options, int64_t epoch, int ranks) {
    std::vector<std::unique_ptr<Loader>> loaders;
    options.parts = ranks;
    for (options.first_part = 0; options.first_part < ranks; ++options.first_part) {
        loaders.push_back(std::make_unique<Loader>(set, options));
        loaders.back()->start(epoch);
    }
    Epoch all;
    while (loaders[0]->has_next())
        for (const auto& loader : loaders) all.add(loader->next());
    return all;
}

} // namespace rg::data
