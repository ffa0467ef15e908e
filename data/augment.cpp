// Chooses the views of images; core/cpu/augment.cpp writes their pixels.
#include "ringgrad/data/augment.h"

#include "ringgrad/data/resize.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace rg::data {

Normalise normalisation_of(const ImageSet& set) {
    RG_CHECK(set.count > 0 && set.channels <= kMaxImageChannels, "normalise: expected images of 1 to 16 channels, got ",
             set.count, " images of ", set.channels);
    Normalise result;
    const double pixels = double(set.count * set.height * set.width);
    ImageRecord sums; // exact, in integers
    for (int64_t i = 0; i < set.count; ++i) {
        const ImageRecord image = set.record(i);
        for (size_t c = 0; c < size_t(set.channels); ++c)
            sums.sums[c] += image.sums[c], sums.squares[c] += image.squares[c];
    }
    for (size_t c = 0; c < size_t(set.channels); ++c) {
        const double mean = double(sums.sums[c]) / pixels, variance = double(sums.squares[c]) / pixels - mean * mean;
        result.mean[c] = float(mean / 255);
        if (variance > 0) result.deviation[c] = float(std::sqrt(variance) / 255);
    }
    return result;
}

std::vector<WeightedView> mirrored_and_shifted(int64_t width) {
    std::vector<WeightedView> views;
    for (const int64_t shift : {0, -1, 1})
        for (const bool mirror : {false, true}) {
            View view{.y0 = int32_t(shift * kPixel), .x0 = int32_t(shift * kPixel)};
            if (mirror) view.x0 += int32_t((width - 1) * kPixel), view.x_per_column = -kPixel;
            views.push_back({view, shift == 0 ? 0.25f : 0.125f});
        }
    return views;
}

Augmenter::Augmenter(int64_t height, int64_t width, int64_t channels, const Augment& augment,
                     const Normalise& normalise, ImageSize window)
    : height_(height),
      width_(width),
      channels_(channels),
      window_(window == ImageSize{} ? ImageSize{height, width} : window),
      augment_(augment),
      normalise_(normalise) {
    RG_CHECK(height > 0 && width > 0 && channels >= 1 && channels <= kMaxImageChannels,
             "augment: expected images of 1 to 16 channels, got ", height, " x ", width, " x ", channels);
    check();
    table_ = cpu::byte_table<float>(normalise.mean.data(), normalise.deviation.data(), channels);
}

void Augmenter::check() const {
    const Augment& a = augment_;
    RG_CHECK(height() > 0 && height() <= height_ && width() > 0 && width() <= width_,
             "augment: expected a window of at most ", height_, "x", width_, " pixels, got ", height(), "x", width());
    RG_CHECK(!a.flip || !a.alternating_flip, "augment: expected one kind of flip, got both; omit one of them");
    RG_CHECK(!a.crop || a.crop_area == Interval{},
             "augment: expected crop or resized-crop, got both; omit one of them");
    const auto check_translation = [](const char* axis, int64_t most, int64_t extent) {
        RG_CHECK(most >= 0 && most < extent, "augment: expected a translation of 0 to ", extent - 1, " pixels in ",
                 axis, ", less than the images have, got ", most, "; make --translate or --translate-", axis,
                 " smaller, or --size larger, or leave translate out of --augment");
    };
    check_translation("x", a.translate_x, width_);
    check_translation("y", a.translate_y, height_);
    RG_CHECK(a.rotate >= 0 && a.rotate <= 180, "augment: expected a rotation by 0 to 180 degrees, got ", a.rotate);
    const auto check_range = [](const char* what, const Interval& range, double most) {
        RG_CHECK(range.least > 0 && range.least <= range.most && range.most <= most, "augment: expected a range of ",
                 what, " above 0 and up to ", most, ", got ", range.least, " to ", range.most);
    };
    check_range("scales", a.scale, 1000);
    check_range("areas", a.crop_area, 1);
    // The numbers of a View are 32-bit integers, in units of 1/65536 pixel, and must not overflow.
    const double diagonal = std::hypot(double(height_), double(width_)) / std::min(1.0, a.scale.least);
    RG_CHECK(diagonal <= 8192, "augment: expected images whose diagonal, divided by the smallest scale, is at most ",
             "8192 pixels long, got ", diagonal, "; make --size smaller, or the least --scale larger");
    for (size_t c = 0; c < size_t(channels_); ++c)
        RG_CHECK(normalise_.deviation[c] > 0, "augment: expected a positive standard deviation, got ",
                 normalise_.deviation[c], " (channel ", c, ")");
}

namespace {

double draw(Rng& rng, double least, double most) { return least + (most - least) * double(rng.uniform()); }

} // namespace

Augmenter::Box Augmenter::random_box(Rng& rng) const {
    const double pixels = double(height_ * width_), widest = 4.0 / 3.0;
    for (int trial = 0; trial < 10; ++trial) {
        const double area = pixels * draw(rng, augment_.crop_area.least, augment_.crop_area.most),
                     aspect = std::exp(draw(rng, -std::log(widest), std::log(widest)));
        const int64_t h = std::llround(std::sqrt(area / aspect)), w = std::llround(std::sqrt(area * aspect));
        if (h < 1 || w < 1 || h > height_ || w > width_) continue;
        const int64_t top = rng.uniform_below(uint32_t(height_ - h + 1)),
                      left = rng.uniform_below(uint32_t(width_ - w + 1));
        return {top, left, h, w};
    }
    // No trial fits. Returns the largest box in the centre with an aspect ratio of 3/4 to 4/3, up to rounding.
    const int64_t h = std::min<int64_t>(height_, std::llround(double(width_) * widest)),
                  w = std::min<int64_t>(width_, std::llround(double(height_) * widest));
    return {(height_ - h) / 2, (width_ - w) / 2, h, w};
}

View Augmenter::view(uint64_t seed, int64_t epoch, int64_t index) const {
    const Augment& a = augment_;
    // Draws the numbers of all options, even if they are not used. So changing one option rarely changes the numbers of
    // others (only if uniform_below() draws again). random_box() is last, since it draws a varying count of numbers.
    Rng rng(seed, Purpose::augment, uint32_t(epoch), uint64_t(index));
    const auto up_to = [&](int64_t most) { return int64_t(rng.uniform_below(uint32_t(most + 1))); };
    bool flip = rng.uniform_below(2) && a.flip;
    if (a.alternating_flip) flip = (Rng(seed, Purpose::augment, 0, uint64_t(index)).uniform_below(2) + epoch) % 2 != 0;
    const int64_t shift_y = up_to(2 * a.translate_y) - a.translate_y,
                  shift_x = up_to(2 * a.translate_x) - a.translate_x;
    const int64_t crop_y = up_to(height_ - height()), crop_x = up_to(width_ - width());
    const bool flip_vertical = rng.uniform_below(2) && a.flip_vertical;
    const double angle = draw(rng, -a.rotate, a.rotate) * std::numbers::pi / 180,
                 scale = draw(rng, a.scale.least, a.scale.most);
    Box box{a.crop ? crop_y : centre_offset(height_, height()), a.crop ? crop_x : centre_offset(width_, width()),
            height(), width()};
    if (a.crop_area != Interval{}) box = random_box(rng);

    const auto fixed = [](double pixels) { return int32_t(std::llround(pixels * double(kPixel))); };
    const double down = double(box.height) / double(height()) / scale * (flip_vertical ? -1 : 1),
                 right = double(box.width) / double(width()) / scale * (flip ? -1 : 1);
    View view;
    view.y_per_row = fixed(down * std::cos(angle)), view.y_per_column = fixed(right * std::sin(angle));
    view.x_per_row = fixed(-down * std::sin(angle)), view.x_per_column = fixed(right * std::cos(angle));
    // The centre of the result shows the centre of the shifted box. The first pixel of the result lies (height - 1) / 2
    // rows of the result above its centre, and (width - 1) / 2 columns left of it.
    const auto first = [&](double centre, int32_t per_row, int32_t per_column) {
        return int32_t(fixed(centre - 0.5) - (per_row * (height() - 1) + per_column * (width() - 1)) / 2);
    };
    view.y0 = first(double(box.top + shift_y) + double(box.height) / 2, view.y_per_row, view.y_per_column);
    view.x0 = first(double(box.left + shift_x) + double(box.width) / 2, view.x_per_row, view.x_per_column);
    return view;
}

void Augmenter::apply(std::span<const uint8_t> image, const View& view, float* out) const {
    RG_CHECK(int64_t(image.size()) == height_ * width_ * channels_, "augment: expected an image of ",
             height_ * width_ * channels_, " bytes, got ", image.size());
    const cpu::ViewShape shape{height_, width_, channels_, height(), width(), reflect()};
    cpu::write_view(shape, view, table_, image.data(), out);
}

Tensor Augmenter::statistics() const {
    const Tensor host = Tensor::on_host({2, channels_}), statistics = Tensor::empty({2, channels_});
    std::copy_n(normalise_.mean.begin(), channels_, host.data<float>());
    std::copy_n(normalise_.deviation.begin(), channels_, host.data<float>() + channels_);
    statistics.copy_from(host);
    return statistics;
}

} // namespace rg::data
