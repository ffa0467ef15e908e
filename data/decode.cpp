// See decode.h.
#include "ringgrad/data/decode.h"

#include "ringgrad/core/cpu/parallel.h"
#include "ringgrad/core/stop.h"
#include "ringgrad/core/text.h"
#include "ringgrad/data/resize.h"

#include <algorithm>
#include <mutex>

namespace rg::data {

namespace {

/// Calls f(i) for every i in [0, count) on the threads of the context. If calls throw an Error, skips larger i where it
/// still can, and throws the Error of the smallest i, as a loop would. Throws Stopped after a stop request.
void for_each_image(int64_t count, const std::function<void(int64_t)>& f) {
    std::mutex mutex;
    std::exception_ptr error;
    std::atomic<int64_t> failed = count; // smallest i that has failed
    parallel(count, [&](int64_t i) {
        check_stop();
        if (i > failed) return;
        try {
            f(i);
        } catch (const Error&) {
            const std::lock_guard lock(mutex);
            if (i > failed) return;
            failed = i;
            error = std::current_exception();
        }
    });
    if (error) std::rethrow_exception(error);
}

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
    if (count == 0) return;
    int64_t done = 0; // images of this call that are in the set
    const auto put = [&](int64_t i, const Image& image) {
        RG_CHECK(image.height == set.height && image.width == set.width, "images: expected images of one size, ",
                 set.width, " x ", set.height, " as in ", first_name_, ", got ", image.width, " x ", image.height, " (",
                 name(i), "); give --size to resize all images");
        std::copy(image.pixels.begin(), image.pixels.end(),
                  set.pixels.begin() + std::ptrdiff_t((set.count + i) * set.image_bytes()));
    };
    if (set.count == 0) { // the first image determines the size of the set
        const Image first = converted(read(0));
        first_name_ = name(0);
        set.height = first.height, set.width = first.width, set.channels = channels_;
        set.pixels.resize(size_t(count * set.image_bytes()));
        put(0, first);
        done = 1;
    } else {
        set.pixels.resize(size_t((set.count + count) * set.image_bytes()));
    }
    for_each_image(count - done, [&](int64_t i) { put(done + i, converted(read(done + i))); });
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

} // namespace rg::data
