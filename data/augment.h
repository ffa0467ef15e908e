// Converts stored bytes to network inputs: normalisation, and random views of the training images.
//
// One pass over an image does both, unless a view changes colours or mixes images; then a second one normalises. A view
// (core/ops/augment.h) says where each pixel of the result lies in the image; a table with the 256 normalised values of
// each channel converts the bytes. A view that only flips, translates or crops moves whole pixels. Rotation, scale and
// resized crops interpolate between four pixels, without antialiasing: store images at about the size of the network's
// inputs, or a little larger (data/resize.h). A view may also change the colours, mix in the view of a second image,
// and erase a box.
//
// The view of an image depends on the settings, the seed, the epoch, and the index of the image in its set. It does not
// depend on the mini-batch, the rank or the thread.
#pragma once

#include "core/cpu/augment.h"
#include "core/rng.h"
#include "core/tensor.h"
#include "data/dataset.h"

#include <array>

namespace rg::data {

/// Mean and standard deviation of each channel. A byte x is normalised to (x / 255 - mean) / deviation.
struct Normalise {
    using Channels = std::array<float, kMaxImageChannels>;
    Channels mean{};
    Channels deviation = [] {
        Channels ones{};
        ones.fill(1);
        return ones;
    }();
};
/// Mean and standard deviation of byte / 255 in the training images of CIFAR-10, and of ImageNet as torchvision's
/// pretrained networks expect them, per channel.
constexpr Normalise kImageNet{{0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}};
constexpr Normalise kCifar10{{0.4914f, 0.4822f, 0.4465f}, {0.2470f, 0.2435f, 0.2616f}};

/// Returns the mean and the standard deviation of byte / 255 in the images, per channel. A constant channel gets a
/// deviation of 1. Throws Error if there are no images, or more than 16 channels.
Normalise normalisation_of(const ImageSet& set);

/// How to fill pixels outside of the image: with black (byte 0 before normalisation), or with the image mirrored at its
/// edge pixels.
enum class Fill : uint8_t { zero, reflect };

/// The range [least, most) from which a number is drawn uniformly. If both ends are equal, the number is `least`.
struct Interval {
    double least = 1, most = 1;
    bool operator==(const Interval&) const = default;
};

/// The largest changes of brightness, contrast and saturation, like the arguments of torchvision's ColorJitter. Each
/// factor is drawn uniformly from [max(0, 1 - x), 1 + x]. The changes always apply in this order; torchvision draws the
/// order, too.
struct Jitter {
    double brightness = 0, contrast = 0, saturation = 0; // 0: off
    bool operator==(const Jitter&) const = default;
};

/// The changes of the images. They apply in this order: a window is cut out, shifted, rotated and scaled about its
/// centre, and flipped. Then its colours change, a second image is mixed in, and a box is erased. Without `crop` and
/// `crop_area`, the window is central. A translation by up to N pixels with Fill::zero has the same distribution as
/// torchvision's RandomCrop(size, padding=N), if that keeps the size of the images.
struct Augment {
    bool flip = false;             // mirrors each image left to right with probability 1/2
    bool alternating_flip = false; // mirrors a fixed random half left to right in even epochs, the others in odd ones
    bool flip_vertical = false;    // mirrors each image top to bottom with probability 1/2
    int64_t translate_x = 0;       // largest shift in pixels, to the left and to the right
    int64_t translate_y = 0;       // the same, up and down
    double rotate = 0;             // largest angle in degrees, in both directions
    Interval scale{1, 1};          // factor by which the picture grows
    Fill fill = Fill::zero;        // how to fill the pixels that translation, rotation or scale uncover
    bool crop = false;             // cuts the window at a random place, as torchvision's RandomCrop(size)
    /// Range of a random window's area, as a fraction of the image's area; {1, 1}: off. The window has a random place
    /// and an aspect ratio of about 3/4 to 4/3. If none of 10 random windows fits into the image, a large central one
    /// is used. The window is resized to the size of the result. This is like torchvision's RandomResizedCrop, but
    /// without antialiasing.
    Interval crop_area{1, 1};
    Jitter jitter = {}; // for images of 1 or 3 channels
    /// Probability of erasing a box, with 0 after normalisation (Zhong et al., arXiv:1708.04896). Its area is 0.02 to
    /// 0.33 of the window's, and height / width is 0.3 to 3.3, drawn uniformly on a logarithmic scale. If none of 10
    /// boxes is smaller than the window, none is erased. This is torchvision's RandomErasing(p) after Normalize.
    double erase = 0;
    /// Parameter A of the distribution Beta(A, A) of a number L; 0: off. `mixup` computes L * image + (1 - L) * second
    /// image (Zhang et al., arXiv:1710.09412). `cutmix` replaces a box with 1 - L of the window's area by that part of
    /// a second image, but leaves out the part beyond the window (Yun et al., arXiv:1905.04899).
    /// With both, one of them is drawn for each image with probability 1/2. Loader chooses the second image.
    double mixup = 0, cutmix = 0;
};

/// A view of a test image, and the weight of its scores in the scores of the image.
struct WeightedView {
    View view = {};
    float weight = 1;
};
/// Returns six views of an image with this width: the image, the windows of the same size that begin one pixel before
/// and after its first row and column, and these three mirrored left to right. The shifted ones have half the weight of
/// the others. The weights add up to 1 (Jordan, arXiv:2404.00498).
std::vector<WeightedView> mirrored_and_shifted(int64_t width);

class Augmenter {
public:
    /// Takes images [height width channels]. Results have the size of the window, or with {0, 0} that of the images.
    /// Throws Error unless extents and deviations are positive, there are at most 16 channels, the window fits into the
    /// images, and translations are from 0 to below the images' extents. The other ranges are [0, 180] for `rotate`,
    /// [0, 1] for `erase`, [0, 100] for `mixup` and `cutmix`, [0, 10] for the numbers of `jitter` (0 unless there are 1
    /// or 3 channels), and 0 < least <= most, at most 1000 for `scale` and 1 for `crop_area`. Also throws if the
    /// images' diagonal / min(1, scale.least) exceeds 8192 pixels, for `flip` with `alternating_flip`, and for `crop`
    /// with `crop_area`.
    Augmenter(int64_t height, int64_t width, int64_t channels, const Augment& augment, const Normalise& normalise,
              ImageSize window = {});

    int64_t height() const { return window_.height; }
    int64_t width() const { return window_.width; }

    /// Writes the normalised view of an image to `out`: [height() width() channels] floats. If there is a second image,
    /// view.mixed says where it is mixed in. Throws Error if an image has another size than those of the constructor.
    void apply(std::span<const uint8_t> image, const View& view, float* out, std::span<const uint8_t> second_image = {},
               const View& second_view = {}) const;

    /// Returns true if each result is mixed of two images.
    bool mixes() const { return augment_.mixup > 0 || augment_.cutmix > 0; }
    /// Returns the weight of the second image in a result with this view, from 0 to 1.
    double second_share(const View& view) const;

    // Inputs of the augment op (core/ops/augment.h), which does the work of apply() for a mini-batch. view() returns
    // the view of an image in `epoch`; `index` is Draw::stream(). empty_indices() and empty_views() return host tensors
    // for n results, in which store_view() stores view i; with mixes(), result i has the views 2 i and 2 i + 1.
    // statistics() returns the means (row 0) and standard deviations (row 1) as an f32 tensor [2 channels], on the
    // context's device if it has one. reflect() is true if uncovered pixels show the mirrored image.
    View view(uint64_t seed, int64_t epoch, int64_t index) const;
    Tensor empty_indices(int64_t n) const;
    Tensor empty_views(int64_t n) const;
    void store_view(const Tensor& views, int64_t i, const View& view) const;
    Tensor statistics() const;
    bool reflect() const { return augment_.fill == Fill::reflect; }

private:
    /// Returns a box of a random area, aspect ratio and place. If 10 such boxes are all too large for the image, or
    /// empty, returns the largest central box whose aspect ratio is allowed.
    Box random_box(Rng& rng) const;
    /// Returns true if views only have positions, with the defaults for all other numbers.
    bool positions_only() const { return augment_.jitter == Jitter{} && augment_.erase == 0 && !mixes(); }

    int64_t height_, width_, channels_;
    ImageSize window_;
    Augment augment_;
    Normalise normalise_;
    cpu::ByteTable<float> table_{};
};

} // namespace rg::data
