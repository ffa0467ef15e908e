// Chooses the views of images; core/cpu/augment.cpp writes their pixels.
#include "data/augment.h"

#include "data/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <optional>

namespace rg::data {

Normalise normalisation_of(const ImageSet& set) {
    RG_CHECK(set.count > 0 && set.channels <= kMaxImageChannels, "normalise: expected images of 1 to 16 channels, got ",
             set.count, " images of ", set.channels);
    Normalise result;
    const double pixels = double(set.count * set.height * set.width);
    ImageStats sums; // exact, in integers
    for (int64_t i = 0; i < set.count; ++i) {
        const ImageStats image = set.stats(i);
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
    const Augment& a = augment_;
    RG_CHECK(window_.height > 0 && window_.height <= height && window_.width > 0 && window_.width <= width,
             "augment: expected a window of at most ", height, "x", width, " pixels, got ", window_.height, "x",
             window_.width);
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
    const auto check_number = [](const char* what, double value, double most) {
        RG_CHECK(value >= 0 && value <= most, "augment: expected ", what, " of 0 to ", most, ", got ", value);
    };
    check_number("a probability of erasing", a.erase, 1);
    for (const double change : {a.jitter.brightness, a.jitter.contrast, a.jitter.saturation})
        check_number("changes of colours", change, 10);
    check_number("a parameter of mixup", a.mixup, 100);
    check_number("a parameter of cutmix", a.cutmix, 100);
    RG_CHECK(a.jitter == Jitter{} || channels_ == 1 || channels_ == 3,
             "augment: expected images of 1 or 3 channels for jitter, got ", channels_, "; omit --jitter");
    // The numbers of a View are 32-bit integers, in units of 1/65536 pixel, and must not overflow.
    const double diagonal = std::hypot(double(height_), double(width_)) / std::min(1.0, a.scale.least);
    RG_CHECK(diagonal <= 8192, "augment: expected images whose diagonal, divided by the smallest scale, is at most ",
             "8192 pixels long, got ", diagonal, "; make --size smaller, or the least --scale larger");
    for (size_t c = 0; c < size_t(channels_); ++c)
        RG_CHECK(normalise_.deviation[c] > 0, "augment: expected a positive standard deviation, got ",
                 normalise_.deviation[c], " (channel ", c, ")");
    table_ = cpu::byte_table<float>(normalise.mean.data(), normalise.deviation.data(), channels);
}

namespace {

double draw(Rng& rng, double least, double most) { return least + (most - least) * double(rng.uniform()); }

constexpr int kTrials = 10;

/// Returns a box of a random area, aspect ratio and place in a window, at most as large as `most`. The area is a
/// fraction of the window's, and `log_aspect` the range of log(width / height). Returns nothing if all of kTrials boxes
/// are too large or empty.
std::optional<Box> draw_box(Rng& rng, ImageSize window, ImageSize most, Interval area, Interval log_aspect) {
    const double pixels = double(window.height * window.width);
    for (int trial = 0; trial < kTrials; ++trial) {
        const double size = pixels * draw(rng, area.least, area.most),
                     aspect = std::exp(draw(rng, log_aspect.least, log_aspect.most));
        const int64_t h = std::llround(std::sqrt(size / aspect)), w = std::llround(std::sqrt(size * aspect));
        if (h < 1 || w < 1 || h > most.height || w > most.width) continue;
        const auto top = int32_t(rng.uniform_below(uint32_t(window.height - h + 1))),
                   left = int32_t(rng.uniform_below(uint32_t(window.width - w + 1)));
        return Box{top, left, int32_t(top + h), int32_t(left + w)};
    }
    return {};
}

/// Returns the logarithm of a number with the gamma distribution of shape a (Marsaglia and Tsang, "A simple method for
/// generating gamma variables", 2000). The number itself underflows for small a.
double draw_log_gamma(Rng& rng, double a) {
    const auto log_uniform = [&] { return std::log(1 - double(rng.uniform())); };
    if (a < 1) return log_uniform() / a + draw_log_gamma(rng, a + 1);
    const double d = a - 1.0 / 3, c = 1 / std::sqrt(9 * d);
    for (;;) {
        const double x = double(rng.normal()), root = 1 + c * x;
        if (root <= 0) continue;
        const double log_v = 3 * std::log(root);
        if (log_uniform() < x * x / 2 + d * (1 - std::exp(log_v) + log_v)) return std::log(d) + log_v;
    }
}

/// Returns a number with the distribution Beta(a, a).
double draw_beta(Rng& rng, double a) {
    const double x = draw_log_gamma(rng, a), y = draw_log_gamma(rng, a);
    return 1 / (1 + std::exp(y - x));
}

int32_t fixed_factor(double factor) { return int32_t(std::llround(factor * double(kFactor))); }

/// Sets view.mixed and view.mixed_share: where, and with what weight, the view shows a second image.
void draw_mixed(Rng rng, const Augment& a, ImageSize window, View& view) {
    const bool either = rng.uniform_below(2), cut = a.cutmix > 0 && (a.mixup == 0 || either);
    const double second = 1 - draw_beta(rng, cut ? a.cutmix : a.mixup);
    const auto height = int32_t(window.height), width = int32_t(window.width);
    if (!cut) {
        view.mixed = {0, 0, height, width}, view.mixed_share = fixed_factor(second);
        return;
    }
    const auto half_of = [&](int32_t extent) { return int32_t(double(extent) * std::sqrt(second)) / 2; };
    const auto y = int32_t(rng.uniform_below(uint32_t(height))), x = int32_t(rng.uniform_below(uint32_t(width)));
    view.mixed = {std::max(y - half_of(height), 0), std::max(x - half_of(width), 0),
                  std::min(y + half_of(height), height), std::min(x + half_of(width), width)};
    view.mixed_share = int32_t(kFactor);
}

} // namespace

Box Augmenter::random_box(Rng& rng) const {
    const double widest = 4.0 / 3.0;
    const ImageSize image{height_, width_};
    if (const auto box = draw_box(rng, image, image, augment_.crop_area, {-std::log(widest), std::log(widest)}))
        return *box;
    // No trial fits. Returns the largest box in the centre with an aspect ratio of 3/4 to 4/3, up to rounding.
    const int64_t h = std::min<int64_t>(height_, std::llround(double(width_) * widest)),
                  w = std::min<int64_t>(width_, std::llround(double(height_) * widest)), top = (height_ - h) / 2,
                  left = (width_ - w) / 2;
    return {int32_t(top), int32_t(left), int32_t(top + h), int32_t(left + w)};
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
    const int64_t top = a.crop ? crop_y : centre_offset(height_, height()),
                  left = a.crop ? crop_x : centre_offset(width_, width());
    Box box{int32_t(top), int32_t(left), int32_t(top + height()), int32_t(left + width())};
    if (a.crop_area != Interval{}) box = random_box(rng);

    const auto fixed = [](double pixels) { return int32_t(std::llround(pixels * double(kPixel))); };
    const int64_t box_height = box.bottom - box.top, box_width = box.right - box.left;
    const double down = double(box_height) / double(height()) / scale * (flip_vertical ? -1 : 1),
                 right = double(box_width) / double(width()) / scale * (flip ? -1 : 1);
    View view;
    view.y_per_row = fixed(down * std::cos(angle)), view.y_per_column = fixed(right * std::sin(angle));
    view.x_per_row = fixed(-down * std::sin(angle)), view.x_per_column = fixed(right * std::cos(angle));
    // The centre of the result shows the centre of the shifted box. The first pixel of the result lies (height - 1) / 2
    // rows of the result above its centre, and (width - 1) / 2 columns left of it.
    const auto first = [&](double centre, int32_t per_row, int32_t per_column) {
        return int32_t(fixed(centre - 0.5) - (per_row * (height() - 1) + per_column * (width() - 1)) / 2);
    };
    view.y0 = first(double(box.top + shift_y) + double(box_height) / 2, view.y_per_row, view.y_per_column);
    view.x0 = first(double(box.left + shift_x) + double(box_width) / 2, view.x_per_row, view.x_per_column);
    if (positions_only()) return view;

    // Colours, erasing and mixing each have random numbers of their own, so that none changes those of another.
    const auto stream = [&](Purpose purpose) { return Rng(seed, purpose, uint32_t(epoch), uint64_t(index)); };
    Rng of_jitter = stream(Purpose::jitter), of_erase = stream(Purpose::erase);
    const auto factor = [&](double most) { return fixed_factor(draw(of_jitter, std::max(0.0, 1 - most), 1 + most)); };
    view.brightness = factor(a.jitter.brightness), view.contrast = factor(a.jitter.contrast);
    view.saturation = factor(a.jitter.saturation);
    if (double(of_erase.uniform()) < a.erase)
        view.erased =
            draw_box(of_erase, window_, {height() - 1, width() - 1}, {0.02, 0.33}, {-std::log(3.3), -std::log(0.3)})
                .value_or(Box{});
    if (mixes()) draw_mixed(stream(Purpose::mix), a, window_, view);
    return view;
}

double Augmenter::second_share(const View& view) const {
    const Box& box = view.mixed;
    return double(view.mixed_share) / double(kFactor) * double(box.bottom - box.top) * double(box.right - box.left) /
           double(height() * width());
}

Tensor Augmenter::empty_indices(int64_t n) const {
    return Tensor::empty_on_host(mixes() ? Shape{n, 2} : Shape{n}, DType::i32);
}

Tensor Augmenter::empty_views(int64_t n) const {
    return Tensor::empty_on_host({n, positions_only() ? kPositionNumbers : (mixes() ? 2 : 1) * kViewNumbers},
                                 DType::i32);
}

void Augmenter::store_view(const Tensor& views, int64_t i, const View& view) const {
    const int64_t numbers = positions_only() ? kPositionNumbers : kViewNumbers;
    std::memcpy(views.data<int32_t>() + numbers * i, &view, size_t(numbers) * sizeof(int32_t));
}

void Augmenter::apply(std::span<const uint8_t> image, const View& view, float* out,
                      std::span<const uint8_t> second_image, const View& second_view) const {
    for (const std::span<const uint8_t> one : {image, second_image})
        RG_CHECK(int64_t(one.size()) == height_ * width_ * channels_ || (one.empty() && !image.empty()),
                 "augment: expected an image of ", height_ * width_ * channels_, " bytes, got ", one.size());
    const cpu::ViewShape shape{height_, width_, channels_, height(), width(), reflect()};
    cpu::write_view(shape, view, table_, image.data(), out, second_view,
                    second_image.empty() ? nullptr : second_image.data());
}

Tensor Augmenter::statistics() const {
    const Tensor host = Tensor::empty_on_host({2, channels_});
    std::copy_n(normalise_.mean.begin(), channels_, host.data<float>());
    std::copy_n(normalise_.deviation.begin(), channels_, host.data<float>() + channels_);
    return host.to_device();
}

} // namespace rg::data
