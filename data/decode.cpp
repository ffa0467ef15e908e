// See decode.h.
#include "data/decode.h"

#include "core/control_groups.h"
#include "core/cpu/parallel.h"
#include "core/stop.h"
#include "core/text.h"
#include "data/resize.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>

namespace rg::data {

namespace {

constexpr int64_t kMostNamed = 5; // most images that an error text names

/// Most bytes that MemorySink takes unchecked. To find out how much memory there is takes longer than to decode an
/// image.
constexpr int64_t kUnchecked = 1 << 24;

/// Keeps pixels in memory.
class MemorySink final : public PixelSink {
public:
    explicit MemorySink(int processes) : processes_(processes) {}
    /// Checks the memory: Linux grants more than it has, and would kill this process later, without a message.
    void begin(int64_t count, int64_t height, int64_t width, int64_t channels) override {
        image_bytes_ = height * width * channels;
        const int64_t bytes = count * image_bytes_ * processes_;
        const int64_t available = bytes <= kUnchecked ? bytes : available_memory();
        RG_CHECK(bytes <= available, "memory: expected at most ", available >> 20,
                 " MiB for the pixels of images, got ", bytes >> 20, " MiB for ", count, " images ", height, "x", width,
                 "x", channels, processes_ > 1 ? cat(" on each of ", processes_, " ranks") : "",
                 "; give a smaller --size, or leave ", "out --cache none");
        bytes_.resize(size_t(count * image_bytes_));
    }
    void put(int64_t i, std::span<const uint8_t> image) override {
        std::copy(image.begin(), image.end(), bytes_.begin() + std::ptrdiff_t(i * image_bytes_));
    }
    Pixels pixels() override { return std::move(bytes_); }

private:
    const int processes_;
    int64_t image_bytes_ = 0;
    std::vector<uint8_t> bytes_;
};

} // namespace

ImageSize parse_size(const std::string& text, const char* option) {
    if (text.empty()) return {};
    const auto number = [&](std::string_view digits) {
        int64_t value = 0;
        RG_CHECK(read_number(digits, value) && value >= 1 && value <= kMaxSide, option,
                 ": expected HEIGHTxWIDTH or one number for both, of 1 to ", kMaxSide, " pixels, got ", text);
        return value;
    };
    const size_t x = text.find('x');
    if (x == text.npos) return {number(text), number(text)};
    return {number(std::string_view(text).substr(0, x)), number(std::string_view(text).substr(x + 1))};
}

Conversion::Conversion(const LoadOptions& options, PixelSink* sink) : sink_(sink), options_(options) {
    RG_CHECK(options_.channels == 1 || options_.channels == 3, "images: expected 1 or 3 channels, got ",
             options_.channels);
}

Image Conversion::converted(const Image& image) {
    const bool grey = image.channels <= 2;
    if (grey && options_.channels == 3) ++to_colour_;
    if (!grey && options_.channels == 1) ++to_grey_;
    Image result = to_u8(image, options_.channels);
    if (options_.height == 0 || (result.height == options_.height && result.width == options_.width)) return result;
    ++resized_;
    return fit(result, options_.height, options_.width);
}

Converted Conversion::read(int64_t count, const NameOfImage& name, const ReadImage& read) {
    MemorySink memory(options_.processes);
    PixelSink& sink = sink_ ? *sink_ : memory;
    std::map<int64_t, std::string> bad, damaged; // error texts, by image
    std::mutex mutex;                            // protects both
    std::atomic<int64_t> differs_at = count;     // the first image with another size than the first good one
    ImageSet set{count, 0, 0, options_.channels};
    std::string first_name;
    const auto note = [&](std::map<int64_t, std::string>& to, int64_t i, const std::string& text) {
        const std::lock_guard lock(mutex);
        to.emplace(i, text);
    };
    const auto add = [&](int64_t i) {
        check_stop();
        if (i > differs_at && !options_.skip_other_images) return; // then read() throws for an earlier image
        Image image;
        try {
            const Image original = read(i);
            image = converted(original);
            const bool differs = set.height > 0 && (image.height != set.height || image.width != set.width);
            if (differs) {
                const std::lock_guard lock(mutex);
                differs_at = std::min<int64_t>(differs_at, i);
            }
            RG_CHECK(!differs, "images: expected images of one size, ", set.width, " x ", set.height, " as in ",
                     first_name, ", got ", image.width, " x ", image.height, " (", name(i),
                     "); give --size to resize all images");
            if (!original.damage.empty()) note(damaged, i, original.damage);
        } catch (const Error& error) {
            return note(bad, i, error.what());
        } catch (const std::bad_alloc&) {
            fail("images: expected memory to decode an image, got too little (", name(i), ")");
        }
        if (set.height == 0) {
            first_name = name(i);
            set.height = image.height, set.width = image.width;
            sink.begin(count, set.height, set.width, options_.channels);
        }
        sink.put(i, image.pixels);
    };
    int64_t done = 0;
    while (done < count && set.height == 0) add(done++); // the first good image determines the size of the set
    parallel(count - done, [&](int64_t i) { add(done + i); });
    if (!options_.skip_other_images)
        bad.erase(bad.upper_bound(differs_at), bad.end()); // the same error on any number of threads
    if (damaged_ == 0 && !damaged.empty()) first_damage_ = damaged.begin()->second;
    damaged_ += std::ssize(damaged);
    if (const int64_t n = std::ssize(bad); n > 0 && (!options_.skip_other_images || n == count)) {
        std::string text = bad.begin()->second, names;
        if (bad.begin()->first == differs_at) throw SizesDiffer(text);
        for (int64_t named = 0; const auto& [i, error] : bad)
            if (++named <= kMostNamed) names += cat(named == 1 ? "" : ", ", name(i));
        if (n > 1)
            text = cat("images: expected ", count, " good images, got ", n, " bad ones: ", names,
                       n > kMostNamed ? ", ..." : "", "; the first: ", text);
        throw Error(n == count ? text : cat(text, "; remove them, or give --skip-other-images"));
    }
    for (const auto& [i, error] : bad) left_out_.push_back(error);
    set.pixels = sink.pixels();
    std::vector<int64_t> kept;
    for (int64_t i = 0; i < count; ++i)
        if (!bad.contains(i)) kept.push_back(i);
    return {std::move(set), std::move(kept)};
}

void Conversion::convert(TrainTest& sets) {
    const auto as_wanted = [&](const ImageSet& set) {
        return set.channels == options_.channels &&
               (options_.height == 0 || (set.height == options_.height && set.width == options_.width));
    };
    const int64_t n = sets.train.count;
    if (!sink_ && as_wanted(sets.train) && (sets.test.count == 0 || as_wanted(sets.test))) return;
    const Converted all = read(
        n + sets.test.count, [&](int64_t i) { return i < n ? cat("training image ", i) : cat("test image ", i - n); },
        [&](int64_t i) {
            const ImageSet& set = i < n ? sets.train : sets.test;
            const std::span<const uint8_t> pixels = set.image(i < n ? i : i - n);
            return Image{set.width, set.height, int(set.channels), 8, {pixels.begin(), pixels.end()}};
        });
    for (int32_t first = 0; ImageSet* const set : {&sets.train, &sets.test}) {
        set->height = all.set.height, set->width = all.set.width, set->channels = options_.channels;
        set->pixels = set->count > 0 ? all.set.pixels : Pixels();
        set->rows.resize(size_t(set->count));
        std::iota(set->rows.begin(), set->rows.end(), first);
        first += int32_t(set->count);
    }
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
    if (!left_out_.empty()) add(std::ssize(left_out_), "left out", left_out_.front());
    return warnings;
}

} // namespace rg::data
