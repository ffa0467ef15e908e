// Converts images to the channels and the size in LoadOptions (dataset.h), on the threads of the context.
//
// Each image goes to its own place in the set, so the set does not depend on the number of threads. If several images
// are bad, one Error has their number, the names of the first ones, and the error of the first one.
#pragma once

#include "ringgrad/data/dataset.h"
#include "ringgrad/data/png.h"

#include <atomic>
#include <functional>

namespace rg::data {

struct ImageSize {
    int64_t height = 0, width = 0;
};
constexpr int64_t kMaxSide = 8192;
/// Parses HEIGHTxWIDTH, or one number for both. Returns {0, 0} for "". Throws Error if the text is neither, or if a
/// number is not in [1, kMaxSide].
ImageSize parse_size(const std::string& text);

/// Returns image i, for example by decoding a file. Several threads may call it at the same time.
using ReadImage = std::function<Image(int64_t i)>;
/// Returns the name of image i for error texts.
using NameOfImage = std::function<std::string(int64_t i)>;

class Conversion {
public:
    /// Uses the channels and the size of the options. Throws Error unless the options ask for 1 or 3 channels.
    explicit Conversion(const LoadOptions& options);
    /// Appends the pixels of `count` images to a set, but not their labels. The set must be empty, or have images of
    /// this conversion. If images fail or differ in size from the first image, throws Error, or with
    /// LoadOptions::skip_other_images leaves them out and returns their numbers. Also throws Error if the memory does
    /// not suffice, and Stopped after a stop request; then the set is unusable.
    std::vector<int64_t> append(ImageSet& set, int64_t count, const NameOfImage& name, const ReadImage& read);
    /// Converts all images of a set, and keeps its labels, classes and targets.
    void convert(ImageSet& set);
    /// Returns the counts of converted and resized images, as in ", 12 grey images converted to colour", or "".
    std::string text() const;
    /// Returns warnings about images with Image::damage, and about those that were left out.
    std::vector<std::string> warnings() const;

private:
    Image converted(const Image& image);

    void reserve(ImageSet& set, int64_t count) const;

    const int channels_, processes_;
    const bool skip_bad_;
    const int64_t height_, width_; // 0: all images of a set must have the size of its first one
    std::string first_name_;       // name of the first image of the latest set
    std::atomic<int64_t> to_colour_ = 0, to_grey_ = 0, resized_ = 0;
    int64_t damaged_ = 0, left_out_ = 0;
    std::string first_damage_, first_left_out_; // Image::damage of the first damaged image; error of the first bad one
};

} // namespace rg::data
