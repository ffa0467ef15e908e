// ImageSet: labelled images in memory, what every reader gives and the loader takes; and how sets are divided.
//
// Pixels stay bytes until a mini-batch is made: CIFAR-10 is 184 MB in all instead of 740. Random choices are
// functions of (seed, purpose, epoch), so that every rank makes the same ones without talking.
#pragma once

#include "core/tensor.h"
#include "data/fetch.h"

#include <span>
#include <vector>

namespace rg::data {

struct ImageSet {
    int64_t count = 0, height = 0, width = 0, channels = 0;
    std::vector<uint8_t> pixels; // [count height width channels]
    std::vector<int32_t> labels; // [count], each an index into classes
    std::vector<std::string> classes;
    std::vector<float> targets = {}; // [count], or none: a number that goes with each image, such as an angle

    int64_t image_bytes() const { return height * width * channels; }
    std::span<const uint8_t> image(int64_t i) const {
        return std::span(pixels).subspan(size_t(i * image_bytes()), size_t(image_bytes()));
    }
    /// Throws unless the vectors have the sizes that the extents say, every label has a class, and every target is a
    /// number. `name` is for that.
    void check(const std::string& name) const;
};

struct TrainTest {
    ImageSet train, test;
    std::string source; // what it is and from where, for people
};

/// How PNGs in class folders are read: as grey (1 channel) or RGB, and, where there is no test set, with a part of each
/// class for testing, chosen at random by seed.
struct LoadOptions {
    int channels = 3;
    double test_part = 0.2;
    uint64_t seed = 0;
    bool skip_other_images = false; // else an image that is no PNG is an error
    FetchOptions fetch = {};        // of what is no folder
};
/// With `what` and the sizes as its source.
TrainTest described(TrainTest sets, const std::string& what);

/// All pixels as a tensor u8 [count height width channels] where the context's ops run, for the augment op.
Tensor resident(const ImageSet& set);

/// Images of each class.
std::vector<int64_t> count_per_label(const ImageSet& set);

/// Indices into a set, each list ascending.
struct Split {
    std::vector<int64_t> first, rest;
};
/// Splits every label on its own, at random by seed: round(fraction * images of the label) go first. Requires a
/// fraction in [0, 1].
Split split_fraction(const ImageSet& set, double fraction, uint64_t seed);
/// The same with `count` images of every label first. Errors: a label has fewer.
Split split_count(const ImageSet& set, int64_t count, uint64_t seed);

/// The images with these indices, in this order. Errors: an index outside of the set.
ImageSet subset(const ImageSet& set, std::span<const int64_t> indices);
/// The two parts of split_fraction() as sets, test_part of each label for testing, and what they are in words. Error:
/// no label has images for both.
TrainTest split_sets(const ImageSet& set, double test_part, uint64_t seed, const std::string& what);

struct Range {
    int64_t begin = 0, end = 0;
    int64_t size() const { return end - begin; }
    bool operator==(const Range&) const = default;
};
/// Part i of n things in `parts` parts, in order: floor(n / parts) each, the remainder one each over the first ones.
/// i = parts: nothing, for who takes no part.
Range share_of(int64_t n, int parts, int i);

/// Part i of a set in `parts` consecutive parts, as share_of() has it.
ImageSet partition(const ImageSet& set, int parts, int i);

/// The order in which an epoch visits n samples, n < 2^32 (Fisher and Yates, by Durstenfeld, 1964).
std::vector<int64_t> permutation(int64_t n, uint64_t seed, int64_t epoch);

} // namespace rg::data
