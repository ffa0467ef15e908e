// Chooses the views of images; core/cpu/augment.cpp writes their pixels.
#include "ringgrad/data/augment.h"

#include <algorithm>
#include <cmath>

namespace rg::data {

Normalise normalisation_of(const ImageSet& set) {
    RG_CHECK(set.count > 0 && set.channels <= kMaxImageChannels, "normalise: expected images of 1 to 16 channels, got ",
             set.count, " images of ", set.channels);
    Normalise result;
    const double pixels = double(set.count * set.height * set.width);
    for (size_t c = 0; c < size_t(set.channels); ++c) {
        // Sums of bytes and of their squares are exact in integers.
        uint64_t sum = 0, squares = 0;
        for (size_t i = c; i < set.pixels.size(); i += size_t(set.channels)) {
            sum += set.pixels[i];
            squares += uint64_t{set.pixels[i]} * set.pixels[i];
        }
        const double mean = double(sum) / pixels, variance = double(squares) / pixels - mean * mean;
        result.mean[c] = float(mean / 255);
        if (variance > 0) result.deviation[c] = float(std::sqrt(variance) / 255);
    }
    return result;
}

Augmenter::Augmenter(int64_t height, int64_t width, int64_t channels, const Augment& augment,
                     const Normalise& normalise)
    : height_(height), width_(width), channels_(channels), augment_(augment), normalise_(normalise) {
    RG_CHECK(height > 0 && width > 0 && channels >= 1 && channels <= kMaxImageChannels,
             "augment: expected images of 1 to 16 channels, got ", height, " x ", width, " x ", channels);
    const int64_t side = std::min(height, width);
    RG_CHECK(augment.crop >= 0 && augment.crop <= side, "augment: expected a crop of at most ", side, " pixels, got ",
             augment.crop);
    RG_CHECK(augment.translate >= 0 && augment.translate < side, "augment: expected a translation of 0 to ", side - 1,
             " pixels, got ", augment.translate);
    for (size_t c = 0; c < size_t(channels); ++c)
        RG_CHECK(normalise.deviation[c] > 0, "augment: expected a positive standard deviation, got ",
                 normalise.deviation[c], " (channel ", c, ")");
    table_ = cpu::byte_table<float>(normalise.mean.data(), normalise.deviation.data(), channels);
}

cpu::View Augmenter::view(uint64_t seed, int64_t epoch, int64_t index) const {
    const int64_t room_y = height_ - height(), room_x = width_ - width(), t = augment_.translate;
    if (!augment_.flip && t == 0 && (room_y + room_x == 0 || !augment_.random_crop))
        return {false, room_y / 2, room_x / 2};
    // Draws every number even if it is not used, so that changing one option does not change the others' numbers.
    Rng rng(seed, Purpose::augment, uint32_t(epoch), uint64_t(index));
    cpu::View view;
    view.flip = rng.uniform_below(2) && augment_.flip;
    view.y0 = int64_t(rng.uniform_below(uint32_t(2 * t + 1))) - t;
    view.x0 = int64_t(rng.uniform_below(uint32_t(2 * t + 1))) - t;
    const int64_t crop_y = rng.uniform_below(uint32_t(room_y + 1)), crop_x = rng.uniform_below(uint32_t(room_x + 1));
    view.y0 += augment_.random_crop ? crop_y : room_y / 2;
    view.x0 += augment_.random_crop ? crop_x : room_x / 2;
    return view;
}

void Augmenter::apply(std::span<const uint8_t> image, uint64_t seed, int64_t epoch, int64_t index, float* out) const {
    RG_CHECK(int64_t(image.size()) == height_ * width_ * channels_, "augment: expected an image of ",
             height_ * width_ * channels_, " bytes, got ", image.size());
    const cpu::ViewShape shape{height_, width_, channels_, height(), width(), reflect()};
    cpu::write_view(shape, view(seed, epoch, index), table_, image.data(), out);
}

Tensor Augmenter::statistics() const {
    const Tensor host = Tensor::on_host({2, channels_}), statistics = Tensor::empty({2, channels_});
    std::copy_n(normalise_.mean.begin(), channels_, host.data<float>());
    std::copy_n(normalise_.deviation.begin(), channels_, host.data<float>() + channels_);
    statistics.copy_from(host);
    return statistics;
}

} // namespace rg::data
