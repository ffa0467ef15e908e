// From stored bytes to what a network is fed: normalisation, and random views of the training images.
//
// All of it is one pass per image: the byte is looked up in a table of the 256 normalised values of its channel, and
// reflection, translation and cropping only choose where it is read. What is random depends on (seed, epoch, index of
// the image in its set) alone, never on the mini-batch, rank or thread that asks.
#pragma once

#include "core/cpu/augment.h"
#include "core/rng.h"
#include "core/tensor.h"
#include "data/dataset.h"

#include <array>

namespace rg::data {

/// (x / 255 - mean) / deviation per channel; see core/cpu/augment.h.
struct Normalise {
    std::array<float, 4> mean{0, 0, 0, 0};
    std::array<float, 4> deviation{1, 1, 1, 1};
};
/// Of the CIFAR-10 training images.
constexpr Normalise kCifar10{{0.4914f, 0.4822f, 0.4465f, 0}, {0.2470f, 0.2435f, 0.2616f, 1}};

/// What a translation uncovers: black (byte 0, then normalised), or the image mirrored at its edge pixel.
enum class Fill : uint8_t { zero, reflect };

struct Augment {
    bool flip = false;     // left to right, for half of the images
    int64_t translate = 0; // up to this many pixels each way, both directions
    Fill fill = Fill::zero;
    int64_t crop = 0;        // side of a square window; 0: the whole image
    bool random_crop = true; // else from the middle
    /// The same extents without anything random: what to evaluate with.
};

class Augmenter {
public:
    /// For images [height width channels]. Errors: more than 4 channels, a deviation that is not positive, a crop
    /// that is too large, a reflection wider than the image.
    Augmenter(int64_t height, int64_t width, int64_t channels, const Augment& augment, const Normalise& normalise);

    int64_t height() const { return augment_.crop ? augment_.crop : height_; }
    int64_t width() const { return augment_.crop ? augment_.crop : width_; }

    /// The view of image `index` in `epoch`: [height() width() channels] floats to `out`.
    void apply(std::span<const uint8_t> image, uint64_t seed, int64_t epoch, int64_t index, float* out) const;

    // What the augment op (core/ops.h) needs to do the same: the view alone; mean and deviation [2 channels], where the
    // context's ops run; and whether views are mirrored outside.
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
