// Views of images: a window is chosen, then written row by row through the table.
#include "data/augment.h"

#include <algorithm>

namespace rg::data {

namespace {

/// Where position i of an extent is read when it lies outside: mirrored without repeating the edge.
int64_t mirrored(int64_t i, int64_t extent) { return i < 0 ? -i : i >= extent ? 2 * (extent - 1) - i : i; }

} // namespace

Augmenter::Augmenter(int64_t height, int64_t width, int64_t channels, const Augment& augment,
                     const Normalise& normalise)
    : height_(height), width_(width), channels_(channels), augment_(augment) {
    RG_CHECK(height > 0 && width > 0 && channels >= 1 && channels <= 4,
             "augment: expected images of 1 to 4 channels, got ", height, " x ", width, " x ", channels);
    const int64_t side = std::min(height, width);
    RG_CHECK(augment.crop >= 0 && augment.crop <= side, "augment: expected a crop of at most ", side, " pixels, got ",
             augment.crop);
    RG_CHECK(augment.translate >= 0 && augment.translate < side, "augment: expected a translation of 0 to ", side - 1,
             " pixels, got ", augment.translate);
    for (size_t c = 0; c < size_t(channels); ++c) {
        RG_CHECK(normalise.deviation[c] > 0, "augment: expected a positive standard deviation, got ",
                 normalise.deviation[c], " (channel ", c, ")");
        for (size_t value = 0; value < 256; ++value)
            table_[c][value] = (float(value) / 255.0f - normalise.mean[c]) / normalise.deviation[c];
    }
}

Augmenter::View Augmenter::choose(uint64_t seed, int64_t epoch, int64_t index) const {
    const int64_t room_y = height_ - height(), room_x = width_ - width(), t = augment_.translate;
    if (!augment_.flip && t == 0 && (room_y + room_x == 0 || !augment_.random_crop))
        return {false, room_y / 2, room_x / 2};
    // Every number is drawn whether or not it is used, so that switching one choice leaves the others as they were.
    Rng rng(seed, Purpose::augment, uint32_t(epoch), uint64_t(index));
    View view;
    view.flip = rng.below(2) && augment_.flip;
    view.y0 = int64_t(rng.below(uint32_t(2 * t + 1))) - t;
    view.x0 = int64_t(rng.below(uint32_t(2 * t + 1))) - t;
    const int64_t crop_y = rng.below(uint32_t(room_y + 1)), crop_x = rng.below(uint32_t(room_x + 1));
    view.y0 += augment_.random_crop ? crop_y : room_y / 2;
    view.x0 += augment_.random_crop ? crop_x : room_x / 2;
    return view;
}

template <int kChannels>
void Augmenter::write(const uint8_t* image, const View& view, float* out) const {
    const int64_t h = height(), w = width();
    // Columns [from, to) of the window lie inside of the image.
    const int64_t from = std::clamp<int64_t>(-view.x0, 0, w), to = std::clamp<int64_t>(width_ - view.x0, from, w);
    const int64_t step = view.flip ? -kChannels : kChannels;
    const auto put = [&](const uint8_t* pixel, float* at) {
        for (size_t c = 0; c < kChannels; ++c) at[c] = table_[c][pixel[c]];
    };
    static constexpr uint8_t kBlack[kChannels] = {};
    const bool reflect = augment_.fill == Fill::reflect;
    for (int64_t y = 0; y < h; ++y, out += w * kChannels) {
        const int64_t source = view.y0 + y;
        const bool outside = source < 0 || source >= height_;
        const uint8_t* row = outside && !reflect ? nullptr : image + mirrored(source, height_) * width_ * kChannels;
        float* const begin = view.flip ? out + (w - 1) * kChannels : out; // of column 0 of the window
        const auto edge = [&](int64_t x) {
            put(row && reflect ? row + mirrored(view.x0 + x, width_) * kChannels : kBlack, begin + x * step);
        };
        if (!row) {
            for (int64_t x = 0; x < w; ++x) edge(x);
            continue;
        }
        for (int64_t x = 0; x < from; ++x) edge(x);
        const uint8_t* pixel = row + (view.x0 + from) * kChannels;
        float* at = begin + from * step;
        for (int64_t x = from; x < to; ++x, pixel += kChannels, at += step) put(pixel, at);
        for (int64_t x = to; x < w; ++x) edge(x);
    }
}

void Augmenter::apply(std::span<const uint8_t> image, uint64_t seed, int64_t epoch, int64_t index, float* out) const {
    RG_CHECK(int64_t(image.size()) == height_ * width_ * channels_, "augment: expected an image of ",
             height_ * width_ * channels_, " bytes, got ", image.size());
    const View view = choose(seed, epoch, index);
    switch (channels_) {
    case 1: return write<1>(image.data(), view, out);
    case 2: return write<2>(image.data(), view, out);
    case 3: return write<3>(image.data(), view, out);
    case 4: return write<4>(image.data(), view, out);
    }
}

} // namespace rg::data
