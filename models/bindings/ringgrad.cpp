// See ringgrad.h.
#include "models/bindings/ringgrad.h"

#include "core/cpu/cpu_scope.h"
#include "data/image_folder.h"
#include "models/run/predictor.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <unistd.h>

struct rg_model {
    rg_model(const rg::TensorFile& file, int threads)
        : pool(threads ? threads : rg::available_cores()), predictor(file) {}

    const pid_t process = getpid();
    rg::ThreadPool pool;
    const rg::Context context{.threads = &pool};
    rg::Predictor predictor;
};

namespace {

using namespace rg;

constexpr size_t kMostImages = 256; // largest batch of a prediction
constexpr int kMostThreads = 4096, kMostPixels = 1 << 16;

// The text has a fixed size, so that the error of exhausted memory needs no memory.
thread_local char last_error[4096] = "";

void set_last_error(const char* text) {
    const size_t size = std::min(std::strlen(text), sizeof last_error - 1);
    std::memcpy(last_error, text, size);
    last_error[size] = '\0';
}

/// Returns f(). If that throws, sets the text of rg_last_error() and returns `failed`.
template <class R, class F>
R guarded(R failed, F f) noexcept {
    try {
        return f();
    } catch (const std::bad_alloc&) {
        set_last_error("memory: expected enough for this model and its images, got less");
    } catch (const std::exception& error) {
        set_last_error(error.what());
    } catch (...) {
        set_last_error("ringgrad: expected an Error, got another exception");
    }
    return failed;
}

void check_not_null(const void* pointer, const char* what) {
    RG_CHECK(pointer, what, ": expected a pointer to it, got NULL");
}

rg_model* opened(const TensorFile& file, int threads) {
    RG_CHECK(threads >= 0 && threads <= kMostThreads, "threads: expected 0 to ", kMostThreads, ", got ", threads);
    auto model = std::make_unique<rg_model>(file, threads);
    RG_CHECK(model->predictor.outputs.input_numbers.empty(), file.source, ": expected a network of images alone, got ",
             "one that also takes numbers; predict with PROGRAM predict, or export it as an ONNX file");
    return model.release();
}

/// Returns the member `which` of the network's ImageTask, or -1 if `model` is NULL.
int extent(const rg_model* model, int64_t ImageTask::*which) {
    return guarded(-1, [&] {
        check_not_null(model, "model");
        return int(model->predictor.task.*which);
    });
}

/// Returns the length of a list of the Predictor, or -1 if `model` is NULL.
template <class List>
int length(const rg_model* model, List Predictor::*list) {
    return guarded(-1, [&] {
        check_not_null(model, "model");
        return int((model->predictor.*list).size());
    });
}

/// Returns text(element) for the element `index` of a list of the Predictor, or NULL if there is no such element.
/// `what` names it in the error text.
template <class List, class F>
const char* element(const rg_model* model, List Predictor::*list, int index, const char* what, F text) {
    return guarded<const char*>(nullptr, [&] {
        check_not_null(model, "model");
        const auto& elements = model->predictor.*list;
        RG_CHECK(index >= 0 && index < std::ssize(elements), what, ": expected an index below ", elements.size(),
                 ", got ", index);
        return std::invoke(text, elements[size_t(index)]).c_str();
    });
}

/// Writes the outputs for n images, batch by batch: part(begin, count, rows) predicts for `count` images from image
/// `begin` on.
template <class F>
int predict(rg_model* model, const char* layer, size_t n, float* outputs, size_t output_count, F part) {
    check_not_null(outputs, "outputs");
    RG_CHECK(model->process == getpid(),
             "model: expected one that this process has opened, got one from before fork(); ",
             "open it in each process");
    const ContextScope scope(model->context);
    const Predictor& predictor = model->predictor;
    const size_t row = predictor.classes.size() + predictor.targets.size() + size_t(predictor.feature_count(layer));
    RG_CHECK(n > 0, "predict: expected at least one image, got none");
    RG_CHECK(output_count % row == 0 && output_count / row == n, "predict: expected room for ", row,
             " outputs for each of ", n, " images, got ", output_count);
    for (size_t begin = 0; begin < n; begin += kMostImages) {
        const size_t count = std::min(n - begin, kMostImages);
        part(begin, count, std::span(outputs + begin * row, count * row));
    }
    return 0;
}

} // namespace

rg_model* rg_open(const char* path, int threads) {
    return guarded<rg_model*>(nullptr, [&] {
        check_not_null(path, "path");
        return opened(load_model(path), threads);
    });
}

rg_model* rg_open_memory(const void* file, size_t size, int threads) {
    return guarded<rg_model*>(nullptr, [&] {
        check_not_null(file, "file");
        return opened(decode_model({static_cast<const char*>(file), size}, "model in memory"), threads);
    });
}

void rg_close(rg_model* model) {
    if (model && model->process == getpid()) delete model; // a child of fork() has no threads to wait for
}

int rg_height(const rg_model* model) { return extent(model, &ImageTask::height); }
int rg_width(const rg_model* model) { return extent(model, &ImageTask::width); }
int rg_channels(const rg_model* model) { return extent(model, &ImageTask::channels); }
int rg_class_count(const rg_model* model) { return length(model, &Predictor::classes); }
int rg_target_count(const rg_model* model) { return length(model, &Predictor::targets); }

const char* rg_class_name(const rg_model* model, int index) {
    return element(model, &Predictor::classes, index, "class", std::identity());
}
const char* rg_target_name(const rg_model* model, int index) {
    return element(model, &Predictor::targets, index, "target", &TargetInfo::name);
}
const char* rg_target_unit(const rg_model* model, int index) {
    return element(model, &Predictor::targets, index, "target", &TargetInfo::unit);
}

int rg_feature_count(rg_model* model, const char* layer) {
    return guarded(-1, [&] {
        check_not_null(model, "model");
        check_not_null(layer, "layer");
        return int(model->predictor.feature_count(layer));
    });
}

int rg_predict(rg_model* model, const uint8_t* pixels, size_t n, int height, int width, int channels, float* outputs,
               size_t output_count) {
    return rg_predict_features(model, "", pixels, n, height, width, channels, outputs, output_count);
}

int rg_predict_features(rg_model* model, const char* layer, const uint8_t* pixels, size_t n, int height, int width,
                        int channels, float* outputs, size_t output_count) {
    return guarded(-1, [&] {
        check_not_null(model, "model");
        check_not_null(layer, "layer");
        check_not_null(pixels, "pixels");
        Predictor& predictor = model->predictor;
        const data::ImageSize size = predictor.resize;
        const bool as_they_are = height == size.height && width == size.width && channels == predictor.task.channels;
        RG_CHECK(as_they_are || (height >= 1 && height <= kMostPixels && width >= 1 && width <= kMostPixels &&
                                 channels >= 1 && channels <= 4),
                 "predict: expected images of 1 to ", kMostPixels, " x 1 to ", kMostPixels,
                 " pixels of 1 to 4 channels, got ", height, " x ", width, " of ", channels, "; channels come last");
        const size_t bytes = size_t(height) * size_t(width) * size_t(channels);
        return predict(model, layer, n, outputs, output_count, [&](size_t begin, size_t count, std::span<float> rows) {
            const std::span part(pixels + begin * bytes, count * bytes);
            if (as_they_are) return predictor.predict_rows(part, rows, {}, layer);
            const auto read = [&](int64_t i) {
                const auto image = part.subspan(size_t(i) * bytes, bytes);
                return data::Image{width, height, channels, 8, {image.begin(), image.end()}};
            };
            predictor.predict_rows(predictor.converted(int64_t(count), read), rows, {}, layer);
        });
    });
}

int rg_predict_file(rg_model* model, const void* file, size_t size, float* outputs, size_t output_count) {
    return rg_predict_file_features(model, "", file, size, outputs, output_count);
}

int rg_predict_file_features(rg_model* model, const char* layer, const void* file, size_t size, float* outputs,
                             size_t output_count) {
    return guarded(-1, [&] {
        check_not_null(model, "model");
        check_not_null(layer, "layer");
        check_not_null(file, "file");
        const auto read = [&](int64_t) {
            return data::decode_image({static_cast<const uint8_t*>(file), size}, "image in memory");
        };
        return predict(model, layer, 1, outputs, output_count, [&](size_t, size_t, std::span<float> row) {
            model->predictor.predict_rows(model->predictor.converted(1, read), row, {}, layer);
        });
    });
}

const char* rg_last_error(void) { return last_error; }
