// See decode.h.
#include "ringgrad/data/decode.h"

#include "ringgrad/core/cpu/parallel.h"
#include "ringgrad/core/stop.h"
#include "ringgrad/core/text.h"
#include "ringgrad/data/resize.h"

#include <algorithm>
#include <map>
#include <mutex>

namespace rg::data {

namespace {

/// Counts images with something wrong, and keeps the texts of the first few in order. Several threads may add images,
/// in any order.
class Findings {
public:
    void add(int64_t image, const std::string& text) {
        const std::lock_guard lock(mutex_);
        ++count_;
        first_.emplace(image, text);
        if (first_.size() > 5) first_.erase(std::prev(first_.end()));
    }
    int64_t count() const { return count_; }
    const std::map<int64_t, std::string>& first() const { return first_; }

private:
    std::mutex mutex_;
    int64_t count_ = 0;
    std::map<int64_t, std::string> first_; // texts by image
};

} // namespace

ImageSize parse_size(const std::string& text) {
    if (text.empty()) return {};
    const auto number = [&](std::string_view digits) {
        int64_t value = 0;
        RG_CHECK(read_number(digits, value) && value >= 1 && value <= kMaxSide,
                 "--size: expected HEIGHTxWIDTH or one number for both, of 1 to ", kMaxSide, " pixels, got ", text);
        return value;
    };
    const size_t x = text.find('x');
    if (x == text.npos) return {number(text), number(text)};
    return {number(std::string_view(text).substr(0, x)), number(std::string_view(text).substr(x + 1))};
}

Conversion::Conversion(const LoadOptions& options)
    : channels_(options.channels), height_(options.height), width_(options.width) {
    RG_CHECK(channels_ == 1 || channels_ == 3, "images: expected 1 or 3 channels, got ", channels_);
}

Image Conversion::converted(const Image& image) {
    const bool grey = image.channels <= 2;
    if (grey && channels_ == 3) ++to_colour_;
    if (!grey && channels_ == 1) ++to_grey_;
    Image result = to_u8(image, channels_);
    if (height_ == 0 || (result.height == height_ && result.width == width_)) return result;
    ++resized_;
    return fit(result, height_, width_);
}

void Conversion::append(ImageSet& set, int64_t count, const NameOfImage& name, const ReadImage& read) {
    Findings bad, damaged;
    const auto add = [&](int64_t i) {
        check_stop();
        try {
            const Image original = read(i), image = converted(original);
            if (set.image_bytes() == 0) {
                first_name_ = name(i);
                set.height = image.height, set.width = image.width, set.channels = channels_;
                set.pixels.resize(size_t(count * set.image_bytes()));
            }
            RG_CHECK(image.height == set.height && image.width == set.width, "images: expected images of one size, ",
                     set.width, " x ", set.height, " as in ", first_name_, ", got ", image.width, " x ", image.height,
                     " (", name(i), "); give --size to resize all images");
            std::copy(image.pixels.begin(), image.pixels.end(),
                      set.pixels.begin() + std::ptrdiff_t((set.count + i) * set.image_bytes()));
            if (!original.damage.empty()) damaged.add(i, original.damage);
        } catch (const Error& error) {
            bad.add(i, error.what());
        }
    };
    set.pixels.resize(size_t((set.count + count) * set.image_bytes()));
    int64_t done = 0;
    while (done < count && set.image_bytes() == 0) add(done++); // the first good image determines the size of the set
    parallel(count - done, [&](int64_t i) { add(done + i); });
    if (bad.count() == 1) throw Error(bad.first().begin()->second);
    if (bad.count() > 1) {
        std::string names;
        for (const auto& [i, error] : bad.first()) names += cat(names.empty() ? "" : ", ", name(i));
        fail("images: expected ", count, " good images, got ", bad.count(), " bad ones: ", names,
             bad.count() > std::ssize(bad.first()) ? ", ..." : "", "; the first: ", bad.first().begin()->second);
    }
    if (damaged_ == 0 && damaged.count() > 0) first_damage_ = damaged.first().begin()->second;
    damaged_ += damaged.count();
    set.count += count;
}

void Conversion::append(ImageSet& set, const ImageSet& images, const std::string& name) {
    append(
        set, images.count, [&](int64_t) { return name; },
        [&](int64_t i) {
            const std::span<const uint8_t> pixels = images.image(i);
            return Image{images.width, images.height, int(images.channels), 8, {pixels.begin(), pixels.end()}};
        });
}

void Conversion::convert(ImageSet& set) {
    if (set.channels == channels_ && (height_ == 0 || (set.height == height_ && set.width == width_))) return;
    ImageSet result;
    append(result, set, "set");
    result.labels = std::move(set.labels), result.classes = std::move(set.classes);
    result.targets = std::move(set.targets);
    set = std::move(result);
}

std::string Conversion::text() const {
    std::string text;
    const auto add = [&](int64_t count, const char* from, const char* what) {
        if (count > 0) text += cat(", ", count, from, count == 1 ? " image " : " images ", what);
    };
    add(to_colour_, " grey", "converted to colour");
    add(to_grey_, " colour", "converted to grey");
    add(resized_, "", "resized");
    return text;
}

std::vector<std::string> Conversion::warnings() const {
    if (damaged_ == 0) return {};
    return {cat("warning: ", damaged_, damaged_ == 1 ? " file is" : " files are", " damaged but readable",
                damaged_ == 1 ? ": " : "; the first: ", first_damage_)};
}

} // namespace rg::data
