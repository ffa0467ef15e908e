// See decode.h.
#include "ringgrad/data/decode.h"

#include "ringgrad/core/cpu/parallel.h"
#include "ringgrad/core/stop.h"

#include <algorithm>
#include <mutex>

namespace rg::data {

namespace {

/// Calls f(i) for every i in [0, count) on the threads of the context. If some calls throw an Error, throws that with
/// the smallest i, as a loop would.
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

Conversion::Conversion(const LoadOptions& options) : channels_(options.channels) {
    RG_CHECK(channels_ == 1 || channels_ == 3, "images: expected 1 or 3 channels, got ", channels_);
}

Image Conversion::converted(const Image& image) {
    const bool grey = image.channels <= 2;
    if (grey && channels_ == 3) ++to_colour_;
    if (!grey && channels_ == 1) ++to_grey_;
    return to_u8(image, channels_);
}

void Conversion::append(ImageSet& set, int64_t count, const NameOfImage& name, const ReadImage& read) {
    if (count == 0) return;
    int64_t done = 0; // images of this call that are in the set
    const auto put = [&](int64_t i, const Image& image) {
        RG_CHECK(image.height == set.height && image.width == set.width, "images: expected images of one size, ",
                 set.width, " x ", set.height, " as in ", first_name_, ", got ", image.width, " x ", image.height, " (",
                 name(i), ")");
        std::copy(image.pixels.begin(), image.pixels.end(),
                  set.pixels.begin() + std::ptrdiff_t((set.count + i) * set.image_bytes()));
    };
    if (set.count == 0) { // the first image determines the size of all
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

std::string Conversion::text() const {
    std::string text;
    const auto add = [&](int64_t count, const char* from, const char* what) {
        if (count > 0) text += cat(", ", count, from, count == 1 ? " image " : " images ", what);
    };
    add(to_colour_, " grey", "converted to colour");
    add(to_grey_, " colour", "converted to grey");
    return text;
}

} // namespace rg::data
