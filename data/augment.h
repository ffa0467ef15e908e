// Converts stored bytes to network inputs: normalisation, and random views of the training images.
//
// One pass over an image does both. A view (core/ops/augment.h) says where each pixel of the result lies in the image;
// a table with the 256 normalised values of each channel converts the bytes. Flips, translation and crops by whole
// pixels keep the bytes. Rotation, scale and resized crops interpolate between four pixels, without antialiasing: store
// images at about the size of the network's inputs (data/resize.h).
//
// The random choices depend only on (seed, epoch, index of the image in its set), never on the mini-batch, rank or
// thread.
#pragma once

#include "ringgrad/core/cpu/augment.h"
#include "ringgrad/core/rng.h"
#include "ringgrad/core/tensor.h"
#include "ringgrad/data/dataset.h"

#include <array>

namespace rg::data {

/// Normalises with (x / 255 - mean) / deviation per channel. See core/cpu/augment.h.
struct Normalise {
    using Channels = std::array<float, kMaxImageChannels>;
    Channels mean{};
    Channels deviation = ones();

private:
    static constexpr Channels ones() {
        Channels values;
        values.fill(1);
        return values;
    }
};
/// Mean and deviation of the CIFAR-10 training images.
constexpr Normalise kCifar10{{0.4914f, 0.4822f, 0.4465f}, {0.2470f, 0.2435f, 0.2616f}};

/// Returns the mean and the standard deviation of the images, per channel. A channel that is constant gets a deviation
/// of 1.
Normalise normalisation_of(const ImageSet& set);

/// How to fill pixels outside of the image: with black (byte 0 before normalisation), or with the image mirrored at its
/// edge pixels.
enum class Fill : uint8_t { zero, reflect };

/// A number that is drawn uniformly.
struct Interval {
    double least = 1, most = 1;
    bool operator==(const Interval&) const = default;
};

/// The random changes of the images. They apply in this order: a window is cut out, shifted, rotated and scaled about
/// its centre, and flipped. A crop with padding of N pixels, as torchvision's RandomCrop(padding=N) of the whole image,
/// is a translation by N with Fill::zero.
struct Augment {
    bool flip = false;          // mirrors half of the images left to right
    bool flip_vertical = false; // mirrors half of the images top to bottom
    int64_t translate_x = 0;    // largest shift in pixels, to the left and to the right
    int64_t translate_y = 0;    // the same, up and down
    double rotate = 0;          // largest angle in degrees, in both directions
    Interval scale{1, 1};       // factor by which the picture grows
    Fill fill = Fill::zero;     // of pixels that translation, rotation or scale uncover
    int64_t crop = 0;           // side of a square window in pixels; 0: the whole image
    bool random_crop = true;    // false: crop from the centre
    /// Range of a window's area, as a fraction of the image's; the window has a random place and an aspect ratio of 3/4
    /// to 4/3, and is resized to the size that the result has without this setting. {1, 1}: off. As torchvision's
    /// RandomResizedCrop, but with bilinear interpolation alone.
    Interval crop_area{1, 1};
};

class Augmenter {
public:
    /// For images [height width channels]. Throws Error if there are more than 16 channels, if a deviation is not
    /// positive, if the crop is larger than the image, if the translation is not smaller than the image, if the angle
    /// is not in [0, 180], if a range is empty or not positive, if the area exceeds 1, or if the diagonal of the image,
    /// divided by the smallest scale, is longer than 8192 pixels.
    Augmenter(int64_t height, int64_t width, int64_t channels, const Augment& augment, const Normalise& normalise);

    int64_t height() const { return augment_.crop ? augment_.crop : height_; }
    int64_t width() const { return augment_.crop ? augment_.crop : width_; }

    /// Writes the view of image `index` in `epoch` to `out`: [height() width() channels] floats.
    void apply(std::span<const uint8_t> image, uint64_t seed, int64_t epoch, int64_t index, float* out) const;

    // The augment op (core/ops.h) needs these to produce the same pixels: the view of an image, the tensor [2 channels]
    // of means and deviations where the context's ops run, and the fill of uncovered pixels (true: mirrored).
    View view(uint64_t seed, int64_t epoch, int64_t index) const;
    Tensor statistics() const;
    bool reflect() const { return augment_.fill == Fill::reflect; }

private:
    /// A part of an image, in pixels.
    struct Box {
        int64_t top, left, height, width;
    };
    void check() const;
    /// Returns a box of a random area, aspect ratio and place.
    Box random_box(Rng& rng) const;

    int64_t height_, width_, channels_;
    Augment augment_;
    Normalise normalise_;
    cpu::ByteTable<float> table_{};
};

} // namespace rg::data
