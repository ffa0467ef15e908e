// Converts images to the channels and the size in LoadOptions (dataset.h), on the threads of the context.
//
// Each image goes to its own place in the set, so the set does not depend on the number of threads. If several images
// are bad, one Error has their number, the names of the first ones, and the error of the first one.
#pragma once

#include "data/dataset.h"
#include "data/png.h"

#include <atomic>
#include <functional>

namespace rg::data {

constexpr int64_t kMaxSide = 8192;
/// Parses HEIGHTxWIDTH, or one number for both. Returns {0, 0} for "". Throws Error if the text is neither, or if a
/// number is not in [1, kMaxSide]. `option` is for the error text.
ImageSize parse_size(const std::string& text, const char* option = "--size");

/// Says that the images of a set differ in size, and that no image before the first one of another size is bad.
struct SizesDiffer : Error {
    using Error::Error;
};

/// Returns image i, for example by decoding a file. Several threads may call it at the same time.
using ReadImage = std::function<Image(int64_t i)>;
/// Returns the name of image i for error texts.
using NameOfImage = std::function<std::string(int64_t i)>;

/// Takes the images of a set one by one, in any order.
class PixelSink {
public:
    virtual ~PixelSink() = default;
    /// Is called once, before the first image. Throws Error if there is no room for `count` images.
    virtual void begin(int64_t count, int64_t height, int64_t width, int64_t channels) = 0;
    /// Takes image i. Several threads may call this at the same time, for different images.
    virtual void put(int64_t i, std::span<const uint8_t> image) = 0;
    /// Returns the pixels of all images, or nothing if they cannot be read yet.
    virtual Pixels pixels() = 0;
};

/// Images that were read together.
struct Converted {
    ImageSet set;              // all images, even unusable ones; without labels, classes, targets and names
    std::vector<int64_t> kept; // those that can be used; subset() in dataset.h selects them
};

class Conversion {
public:
    /// Uses the channels and the size of the options. The pixels go to `sink`, or if it is null, to memory. A sink
    /// takes one set. Throws Error unless the options ask for 1 or 3 channels.
    explicit Conversion(const LoadOptions& options, PixelSink* sink = nullptr);
    /// Reads `count` images. If one fails or has another size than the first good one, throws Error, or with
    /// LoadOptions::skip_other_images leaves it out. The Error is SizesDiffer if the first bad image has another size.
    /// Unless images are left out, the first one of another size ends the reading. Also throws Error if all images fail
    /// or if there is no room for the pixels, and Stopped after a stop request.
    Converted read(int64_t count, const NameOfImage& name, const ReadImage& read);
    /// Adds a file that the caller has left out, with the reason.
    void leave_out(const std::string& file) { left_out_.push_back(file); }
    /// Files that are left out, with the reasons.
    const std::vector<std::string>& left_out() const { return left_out_; }
    /// Converts all images of both sets, and keeps their labels, classes and targets.
    void convert(TrainTest& sets);
    /// Returns the counts of converted and resized images, as in ", 12 grey images converted to colour", or "".
    std::string text() const;
    /// Returns warnings about images with Image::damage, and about those that were left out.
    std::vector<std::string> warnings() const;

private:
    Image converted(const Image& image);

    PixelSink* const sink_;
    const LoadOptions options_; // without a size, all images of a set must have that of the first good one
    std::atomic<int64_t> to_colour_ = 0, to_grey_ = 0, resized_ = 0;
    int64_t damaged_ = 0;
    std::string first_damage_; // Image::damage of the first damaged image
    std::vector<std::string> left_out_;
};

} // namespace rg::data
