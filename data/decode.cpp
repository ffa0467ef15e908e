// See decode.h.
#include "ringgrad/data/decode.h"

#include "ringgrad/core/control_groups.h"
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
    : channels_(options.channels),
      processes_(options.processes),
      skip_bad_(options.skip_other_images),
      height_(options.height),
      width_(options.width) {
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

/// Makes room for the pixels of `count` more images. Linux grants more memory than it has, and would kill this process
/// later, without a message.
void Conversion::reserve(ImageSet& set, int64_t count) const {
    constexpr int64_t kCopies = 2; // sets are divided by copying
    const int64_t bytes = kCopies * count * set.image_bytes() * processes_, available = available_memory();
    RG_CHECK(bytes <= available, "memory: expected at most ", available >> 20, " MiB for the pixels of images, got ",
             bytes >> 20, " MiB for ", count, " images ", set.height, "x", set.width, "x", set.channels,
             processes_ > 1 ? cat(" on each of ", processes_, " ranks") : "", "; give a smaller --size",
             processes_ > 1 ? ", or start fewer ranks" : "");
    set.pixels.resize(size_t((set.count + count) * set.image_bytes()));
}

std::vector<int64_t> Conversion::append(ImageSet& set, int64_t count, const NameOfImage& name, const ReadImage& read) {
    Findings bad, damaged;
    std::vector<uint8_t> is_bad(size_t(count), 0);
    const auto put = [&](int64_t i, const Image& original) {
        const Image image = converted(original);
        if (set.image_bytes() == 0) {
            first_name_ = name(i);
            set.height = image.height, set.width = image.width, set.channels = channels_;
            reserve(set, count);
        }
        RG_CHECK(image.height == set.height && image.width == set.width, "images: expected images of one size, ",
                 set.width, " x ", set.height, " as in ", first_name_, ", got ", image.width, " x ", image.height, " (",
                 name(i), "); give --size to resize all images");
        std::copy(image.pixels.begin(), image.pixels.end(),
                  set.pixels.begin() + std::ptrdiff_t((set.count + i) * set.image_bytes()));
        if (!original.damage.empty()) damaged.add(i, original.damage);
    };
    const auto add = [&](int64_t i) {
        check_stop();
        Image image;
        try {
            image = read(i);
        } catch (const Error& error) {
            bad.add(i, error.what());
            is_bad[size_t(i)] = 1;
            return;
        }
        try {
            put(i, image);
        } catch (const Error& error) {
            if (set.pixels.empty()) throw; // there is no memory
            bad.add(i, error.what());
            is_bad[size_t(i)] = 1;
        }
    };
    if (set.image_bytes() > 0) reserve(set, count);
    int64_t done = 0;
    while (done < count && set.image_bytes() == 0) add(done++); // the first good image determines the size of the set
    parallel(count - done, [&](int64_t i) { add(done + i); });
    if (damaged_ == 0 && damaged.count() > 0) first_damage_ = damaged.first().begin()->second;
    damaged_ += damaged.count();
    std::vector<int64_t> left_out;
    if (bad.count() == 0) {
        set.count += count;
        return left_out;
    }
    if (!skip_bad_) {
        if (bad.count() == 1) throw Error(bad.first().begin()->second);
        std::string names;
        for (const auto& [i, error] : bad.first()) names += cat(names.empty() ? "" : ", ", name(i));
        fail("images: expected ", count, " good images, got ", bad.count(), " bad ones: ", names,
             bad.count() > std::ssize(bad.first()) ? ", ..." : "", "; the first: ", bad.first().begin()->second);
    }
    if (left_out_ == 0) first_left_out_ = bad.first().begin()->second;
    left_out_ += bad.count();
    const auto pixels = set.pixels.begin();
    for (int64_t i = 0, to = set.count; i < count; ++i) {
        if (is_bad[size_t(i)]) {
            left_out.push_back(i);
            continue;
        }
        const auto from = pixels + std::ptrdiff_t((set.count + i) * set.image_bytes());
        std::copy(from, from + std::ptrdiff_t(set.image_bytes()), pixels + std::ptrdiff_t(to++ * set.image_bytes()));
    }
    set.count += count - bad.count();
    set.pixels.resize(size_t(set.count * set.image_bytes()));
    return left_out;
}

void Conversion::convert(ImageSet& set) {
    if (set.channels == channels_ && (height_ == 0 || (set.height == height_ && set.width == width_))) return;
    ImageSet result;
    append(
        result, set.count, [](int64_t) { return std::string("set"); },
        [&](int64_t i) {
            const std::span<const uint8_t> pixels = set.image(i);
            return Image{set.width, set.height, int(set.channels), 8, {pixels.begin(), pixels.end()}};
        });
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
    std::vector<std::string> warnings;
    const auto add = [&](int64_t count, const char* what, const std::string& first) {
        if (count > 0)
            warnings.push_back(cat("warning: ", count, count == 1 ? " file is " : " files are ", what,
                                   count == 1 ? ": " : "; the first: ", first));
    };
    add(damaged_, "damaged but readable", first_damage_);
    add(left_out_, "left out", first_left_out_);
    return warnings;
}

} // namespace rg::data
