// Collects the galleries' samples from all ranks, and draws their images for the report.
#include "models/run/worst_samples.h"

#include "data/resize.h"

#include <array>
#include <cmath>
#include <limits>

namespace rg {
namespace {

/// Returns a picture. byte(y, x, channel) gives its bytes.
template <class F>
data::Image picture(data::ImageSize size, int64_t channels, const F& byte) {
    data::Image image{size.width, size.height, channels < 3 ? 1 : 3, 8, {}};
    for (int64_t y = 0; y < size.height; ++y)
        for (int64_t x = 0; x < size.width; ++x)
            for (int64_t c = 0; c < image.channels; ++c) image.pixels.push_back(byte(y, x, c));
    return image;
}

data::Image scaled_down(const data::Image& image) {
    const int64_t side = std::max(image.height, image.width);
    if (side <= WorstSamples::kMaxSide) return image;
    const auto scaled = [&](int64_t extent) { return std::max<int64_t>(1, extent * WorstSamples::kMaxSide / side); };
    return data::resize(image, scaled(image.height), scaled(image.width));
}

/// Returns red, green and blue of a class: the bits of its number, spread over the highest bits of these, as in PASCAL
/// VOC.
std::array<uint8_t, 3> colour_of(int64_t label) {
    std::array<uint8_t, 3> colour{};
    for (int bit = 7; label > 0 && bit >= 0; --bit, label >>= 3)
        for (size_t c = 0; c < 3; ++c) colour[c] |= uint8_t((label >> c & 1) << bit);
    return colour;
}

} // namespace

data::Image TestBatch::image(int64_t i) const {
    const data::ImageSize size = set.input_size(); // the central window, as the network gets it
    const int64_t y0 = data::centre_offset(set.height, size.height), x0 = data::centre_offset(set.width, size.width);
    const std::span<const uint8_t> pixels = set.image(batch.first + i);
    return picture(size, set.channels, [&](int64_t y, int64_t x, int64_t c) {
        return pixels[size_t(((y0 + y) * set.width + x0 + x) * set.channels + c)];
    });
}

data::Image TestBatch::image(std::span<const float> values) const {
    const data::ImageSize size = set.input_size();
    return picture(size, set.channels, [&](int64_t y, int64_t x, int64_t c) {
        const float value = values[size_t((y * size.width + x) * set.channels + c)];
        const float byte = 255 * (value * normalise.deviation[size_t(c)] + normalise.mean[size_t(c)]);
        return uint8_t(std::min(255.0f, std::max(0.0f, std::round(byte)))); // a NaN becomes 0
    });
}

data::Image picture_of_classes(std::span<const int32_t> classes, data::ImageSize size) {
    data::Image image{size.width, size.height, 3, 8, {}};
    for (const int32_t label : classes) std::ranges::copy(colour_of(label), std::back_inserter(image.pixels));
    return image;
}

void WorstSamples::offer(const TestBatch& test, int64_t i, double error, const std::function<ShownSample()>& show) {
    // A NaN has no order, so it counts as the largest error. JSON has no infinity.
    const Key key{std::max(std::numeric_limits<double>::lowest(), -error), test.batch.first + i};
    if (worst_.size() == kMost && key > worst_.rbegin()->first) return;
    ShownSample& shown = worst_[key] = show();
    for (data::Image& image : shown.pictures) image = scaled_down(image);
    if (worst_.size() > kMost) worst_.erase(std::prev(worst_.end()));
}

Json WorstSamples::gather(par::Group& group, const data::ImageSet& set) const {
    std::map<Key, Json> worst;
    const auto exchange = [&](const Json& own) { // [[negative error, index of the image, sample], ...]
        for (const std::string& text : group.allgather(own.dump(), "samples")) {
            const Json all = Json::parse(text, "samples of a rank");
            for (const Json& one : all.as_array()) {
                const Json::Array& values = one.as_array();
                worst[{values[0].as_double(), values[1].as_int()}] = values[2];
            }
        }
    };
    // First exchange the keys alone, so that only pictures that are shown are sent.
    Json own = Json::array();
    for (const auto& [key, shown] : worst_) own.push(Json::Array{key.first, key.second, nullptr});
    exchange(own);
    while (worst.size() > kMost) worst.erase(std::prev(worst.end()));

    own = Json::array();
    for (const auto& [key, shown] : worst_) {
        if (!worst.contains(key)) continue;
        Json pictures = Json::array();
        for (const data::Image& image : shown.pictures)
            pictures.push(base64(data::encode_png(image.width, image.height, image.channels, image.pixels)));
        const int64_t i = key.second;
        own.push(Json::Array{key.first, i,
                             Json::object()
                                 .set("name", set.names.empty() ? cat("image ", i) : set.names[size_t(i)])
                                 .set("caption", shown.caption)
                                 .set("pictures", std::move(pictures))});
    }
    exchange(own);

    Json samples = Json::array(), legend = Json::array();
    for (const auto& [key, sample] : worst) samples.push(sample);
    for (size_t i = 0; i < gallery_.classes.size(); ++i) {
        const auto [red, green, blue] = colour_of(int64_t(i));
        legend.push(Json::Array{gallery_.classes[i], red, green, blue});
    }
    return Json::object()
        .set("title", gallery_.title)
        .set("legend", std::move(legend))
        .set("samples", std::move(samples));
}

std::string base64(std::span<const uint8_t> bytes) {
    constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    for (size_t i = 0; i < bytes.size(); i += 3) {
        const size_t n = std::min<size_t>(3, bytes.size() - i);
        uint32_t group = 0;
        for (size_t k = 0; k < 3; ++k) group = group << 8 | (k < n ? bytes[i + k] : 0u);
        for (size_t k = 0; k < 4; ++k) out += k <= n ? digits[group >> (18 - 6 * k) & 63] : '=';
    }
    return out;
}

} // namespace rg
