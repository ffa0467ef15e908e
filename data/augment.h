// Converts stored bytes to network inputs: normalisation, and random views of the training images.
//
// One pass over an image does both. A table with the 256 normalised values of each channel converts the bytes. Flip,
// translation and crop only choose which byte is read. The random choices depend only on (seed, epoch, index of the
// image in its set), never on the mini-batch, rank or thread.
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

/// How to fill pixels uncovered by translation: with black (byte 0 before normalisation), or with the image mirrored at
/// its edge pixels.
enum class Fill : uint8_t { zero, reflect };

struct Augment {
    bool flip = false;     // mirrors half of the images left to right
    int64_t translate = 0; // largest shift in pixels, in each direction of both axes
    Fill fill = Fill::zero;
    int64_t crop = 0;        // side of a square window in pixels; 0: the whole image
    bool random_crop = true; // false: crop from the centre
};

class Augmenter {
public:
    /// For images [height width channels]. Throws Error if there are more than 16 channels, if a deviation is not
    /// positive, if the crop is larger than the image, or if the translation is not smaller than the image.
    Augmenter(int64_t height, int64_t width, int64_t channels, const Augment& augment, const Normalise& normalise);

    int64_t height() const { return augment_.crop ? augment_.crop : height_; }
    int64_t width() const { return augment_.crop ? augment_.crop : width_; }

    /// Writes the view of image `index` in `epoch` to `out`: [height() width() channels] floats.
    void apply(std::span<const uint8_t> image, uint64_t seed, int64_t epoch, int64_t index, float* out) const;

    // The augment op (core/ops.h) needs these to produce the same pixels: the view of an image, the tensor [2 channels]
    // of means and deviations where the context's ops run, and the fill of uncovered pixels (true: mirrored).
    cpu::View view(uint64_t seed, int64_t epoch, int64_t index) const;
    Tensor statistics() const;
    bool reflect() const { return augment_.fill == Fill::reflect; }

private:
    int64_t height_, width_, channels_;
    Augment augment_;
    Normalise normalise_;
    cpu::ByteTable<float> table_{};
};

} // namespace rg::data
