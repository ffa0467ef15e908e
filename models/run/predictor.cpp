// See predictor.h.
#include "models/run/predictor.h"

#include "core/cpu/parallel.h"
#include "core/ops.h"

#include <algorithm>
#include <cmath>

namespace rg {

namespace {

// Largest batch whose plan may keep prepared filters. In a larger one, preparing them anew takes a small part of the
// time. The plans do not share prepared filters, so only those of single images and of the first batch size keep them.
constexpr int64_t kFewImages = 8;

} // namespace

void add_weighted(std::vector<Tensor>& sums, std::span<const Tensor> outputs, float weight) {
    for (size_t o = 0; o < outputs.size(); ++o) {
        const Tensor values = outputs[o].to_host().to(DType::f32);
        if (sums.size() <= o) sums.push_back(Tensor::empty_on_host(values.shape())), sums[o].fill(0);
        for (int64_t i = 0; i < values.numel(); ++i) sums[o].data<float>()[i] += weight * values.data<float>()[i];
    }
}

Predictor::Predictor(const std::string& path, DType activations) : Predictor(load_model(path), activations) {}

Predictor::Predictor(const TensorFile& file, DType activations)
    : task(stored_task(file)),
      resize(stored_resize(file)),
      outputs(stored_outputs(file)),
      classes(std::ranges::count(outputs.kinds, "classes") ? stored_classes(file) : std::vector<std::string>()),
      targets(outputs.targets),
      source_(file.source),
      network_(make_network(file)),
      normaliser_(resize.height, resize.width, task.channels, {.fill = data::Fill::reflect}, stored_normalise(file, {}),
                  {task.height, task.width}),
      activations_(activations) {
    for (const std::string& kind : outputs.kinds)
        RG_CHECK(kind == "classes" || kind == "numbers" || kind == "labels", source_,
                 ": expected a model of classes, numbers or labels, got one of kind ", kind,
                 "; export it as an ONNX file instead");
    RG_CHECK(!classes.empty() || !targets.empty(), source_, ": expected a model of classes or targets, got neither");
}

/// Returns the outputs of the network, and then the features of the layer, unless that is "". All are f32 [n k]. May be
/// traced.
std::vector<Tensor> Predictor::forward(std::span<const Tensor> in, const std::string& layer) const {
    const LayerOutputs layers;
    const Tensor x = cast(in[0], activations_);
    std::vector<Tensor> results =
        in.size() > 1 ? network_->outputs(x, in[1], Mode::evaluate) : network_->outputs(x, Mode::evaluate);
    RG_CHECK(results.size() == outputs.kinds.size(), source_, ": expected a network with ", outputs.kinds.size(),
             " outputs, got ", results.size());
    for (Tensor& result : results) result = cast(result, DType::f32);
    if (layer.empty()) return results;
    const Tensor y = layers.of(layer);
    const int64_t n = x.extent(0), k = y.extent(y.shape().rank() - 1);
    results.push_back(cast(global_avg_pool(y.reshape({n, y.numel() / (n * k), 1, k})), DType::f32).reshape({n, k}));
    return results;
}

/// Returns the probabilities of the classes, if any, then numbers in their units and the probabilities of labels, and
/// then the features. May be traced.
std::vector<Tensor> Predictor::finished(std::vector<Tensor> results) const {
    results = outputs.in_units(std::move(results), true);
    if (classes.empty()) return results;
    const auto first = std::ranges::find(outputs.kinds, "classes") - outputs.kinds.begin();
    for (auto other = std::ssize(outputs.kinds) - 1; other > first; --other) // a second head for the same classes
        if (outputs.kinds[size_t(other)] == "classes") results.erase(results.begin() + other);
    const auto scores = results.begin() + first;
    *scores = softmax(*scores);
    std::rotate(results.begin(), scores, scores + 1);
    return results;
}

int64_t Predictor::feature_count(const std::string& layer) const {
    if (layer.empty()) return 0;
    const DryRun without_memory;
    std::vector<Tensor> in{Tensor::empty({1, task.height, task.width, task.channels})};
    if (!outputs.input_numbers.empty()) in.push_back(Tensor::empty({1, std::ssize(outputs.input_numbers)}));
    return forward(in, layer).back().extent(1);
}

data::Pixels Predictor::converted(int64_t n, const data::ReadImage& read) {
    const std::lock_guard lock(in_use_);
    data::LoadOptions options;
    options.channels = int(task.channels), options.height = resize.height, options.width = resize.width;
    data::Conversion conversion(options);
    return conversion
        .read(
            n, [](int64_t i) { return cat("image ", i); }, read)
        .set.pixels;
}

Predictor::Predictions Predictor::predict(int64_t n, const data::ReadImage& read, std::span<const float> numbers,
                                          const std::string& layer) {
    return predict(converted(n, read), numbers, layer);
}

Predictor::Predictions Predictor::predict(std::span<const data::Image> images, std::span<const float> numbers,
                                          const std::string& layer) {
    return predict(
        std::ssize(images), [&](int64_t i) { return images[size_t(i)]; }, numbers, layer);
}

/// Sets results_ to those of finished(), in host memory. Only this object may have inputs_ and results_, since the next
/// call overwrites their values.
void Predictor::run(std::span<const uint8_t> pixels, std::span<const float> numbers, const std::string& layer) {
    const int64_t bytes = resize.height * resize.width * task.channels, n = std::ssize(pixels) / bytes,
                  values = task.height * task.width * task.channels;
    RG_CHECK(n * bytes == std::ssize(pixels) && n > 0, "predict: expected images of ", resize.height, " x ",
             resize.width, " pixels, ", bytes, " bytes each, got ", pixels.size(), " bytes; resize them");
    const int64_t k = std::ssize(outputs.input_numbers);
    RG_CHECK(std::ssize(numbers) == n * k, "predict: expected ", k, " numbers for each of ", n, " images, got ",
             numbers.size(), "; give those of outputs.input_numbers");
    auto known = forward_.find(layer);
    if (known == forward_.end()) {
        release_free_blocks(); // such as those of the model's file
        const auto function = [this, layer](std::span<const Tensor> in, bool finish) {
            std::vector<Tensor> results = this->forward(in, layer);
            return finish ? finished(std::move(results)) : results;
        };
        known = forward_.try_emplace(layer, function).first;
    }
    Accelerated& forward = known->second;
    forward.keep_prepared = n == 1 || (n <= kFewImages && forward.occupancy() == 0);
    if (inputs_.empty() || inputs_[0].extent(0) != n) {
        inputs_ = {Tensor::empty_on_host({n, task.height, task.width, task.channels})};
        if (k > 0) inputs_.push_back(Tensor::empty_on_host({n, k}));
    }
    if (k > 0) std::ranges::copy(numbers, inputs_[1].data<float>());
    const bool one_view = views.size() == 1 && views[0].weight == 1;
    const View central = normaliser_.view(0, 0, 0); // no random changes
    std::vector<Tensor> sums;
    for (const auto& [seen, weight] : views) {
        View view = seen;
        view.y0 += central.y0, view.x0 += central.x0;
        parallel(n, [&](int64_t i) {
            normaliser_.apply(pixels.subspan(size_t(i * bytes), size_t(bytes)), view,
                              inputs_[0].data<float>() + i * values);
        });
        const std::span<const Tensor> of_view = forward(inputs_, one_view);
        if (!one_view) add_weighted(sums, of_view, weight);
        results_.assign(of_view.begin(), of_view.end());
    }
    if (!one_view) {
        Context host = context();
        host.device = nullptr;
        const ContextScope scope(host);
        results_ = finished(std::move(sums));
    }
    for (Tensor& result : results_) {
        result = result.to_host();
        const std::span<const float> all = result.span<float>();
        RG_CHECK(std::ranges::all_of(all, [](float value) { return std::isfinite(value); }), source_,
                 ": expected finite outputs, got NaN or infinity; train the model again, or check the given numbers");
    }
}

void Predictor::predict_rows(std::span<const uint8_t> pixels, std::span<float> rows, std::span<const float> numbers,
                             const std::string& layer) {
    const std::lock_guard lock(in_use_);
    run(pixels, numbers, layer);
    const int64_t n = inputs_[0].extent(0);
    int64_t values = 0;
    for (const Tensor& result : results_) values += result.numel();
    RG_CHECK(std::ssize(rows) == values, "predict: expected room for ", values / n, " outputs for each of ", n,
             " images, got ", rows.size());
    float* to = rows.data();
    for (int64_t i = 0; i < n; ++i)
        for (const Tensor& result : results_)
            to = std::copy_n(result.data<float>() + i * result.extent(1), result.extent(1), to);
}

Predictor::Predictions Predictor::predict(std::span<const uint8_t> pixels, std::span<const float> numbers,
                                          const std::string& layer) {
    const std::lock_guard lock(in_use_);
    run(pixels, numbers, layer);
    Predictions predictions;
    std::span<const Tensor> results = results_;
    if (!layer.empty()) predictions.features = results.back().clone(), results = results.first(results.size() - 1);
    if (!classes.empty()) predictions.scores = results[0].clone(), results = results.subspan(1);
    for (const Tensor& output : results) {
        const int64_t n = output.extent(0), count = output.extent(1);
        for (int64_t t = 0; t < count; ++t) {
            const Tensor& target = predictions.targets.emplace_back(Tensor::empty_on_host({n, 1}));
            for (int64_t i = 0; i < n; ++i) target.data<float>()[i] = output.data<float>()[i * count + t];
        }
    }
    RG_CHECK(predictions.targets.size() == targets.size(), source_, ": expected outputs of ", targets.size(),
             " targets, got ", predictions.targets.size());
    return predictions;
}

} // namespace rg
