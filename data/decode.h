// Gives images the channels and the size that LoadOptions ask for, on all threads of the context.
//
// Each image goes to its own place in the set, so the set does not depend on the number of threads. If several images
// are bad, the error is that of the first one in order.
#pragma once

#include "ringgrad/data/dataset.h"
#include "ringgrad/data/png.h"

#include <atomic>
#include <functional>

namespace rg::data {

/// Parses HEIGHTxWIDTH, or one number for both. Returns {0, 0} for "". Throws Error if it is neither, or if a number is
/// not in [1, kMaxSide].
struct ImageSize {
    int64_t height = 0, width = 0;
};
constexpr int64_t kMaxSide = 8192;
ImageSize parse_size(const std::string& text);

/// Returns image i, for example by decoding a file. Called by several threads at the same time.
using ReadImage = std::function<Image(int64_t i)>;
/// Returns the name of image i for error texts.
using NameOfImage = std::function<std::string(int64_t i)>;

class Conversion {
public:
    /// Uses the channels and the size of the options. Throws Error unless there are 1 or 3 channels.
    explicit Conversion(const LoadOptions& options);
    /// Appends the pixels of `count` images to a set, which must be empty or have images of this conversion, but not
    /// their labels. Throws the first Error of read(), and Error if images differ in size; then the set is incomplete.
    void append(ImageSet& set, int64_t count, const NameOfImage& name, const ReadImage& read);
    /// Does the same with the images of a set, which all have this name.
    void append(ImageSet& set, const ImageSet& images, const std::string& name);
    /// Converts all images of a set.
    void convert(ImageSet& set);
    /// Returns what was converted, such as ", 12 grey images converted to colour", or "".
    std::string text() const;

private:
    Image converted(const Image& image);

    const int channels_;
    const int64_t height_, width_; // 0: that of the first image
    std::string first_name_;       // name of the first image
    std::atomic<int64_t> to_colour_ = 0, to_grey_ = 0, resized_ = 0;
};

} // namespace rg::data
