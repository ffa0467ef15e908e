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
    /// this conversion. Throws Error if images fail or differ in size from the first image, and Stopped after a stop
    /// request; then the set is unusable.
    void append(ImageSet& set, int64_t count, const NameOfImage& name, const ReadImage& read);
    /// Does the same with the images of another set; `name` stands for all of them in error texts.
    void append(ImageSet& set, const ImageSet& images, const std::string& name);
    /// Converts all images of a set, and keeps its labels, classes and targets.
    void convert(ImageSet& set);
    /// Returns the counts of converted and resized images, as in ", 12 grey images converted to colour", or "".
    std::string text() const;
    /// Returns a warning about the images with Image::damage, or nothing if there are none.
    std::vector<std::string> warnings() const;

private:
    Image converted(const Image& image);

    const int channels_;
    const int64_t height_, width_; // 0: all images of a set must have the size of its first one
    std::string first_name_;       // name of the first image of the latest set
    std::atomic<int64_t> to_colour_ = 0, to_grey_ = 0, resized_ = 0;
    int64_t damaged_ = 0;
    std::string first_damage_; // Image::damage of the first damaged image
};

} // namespace rg::data
