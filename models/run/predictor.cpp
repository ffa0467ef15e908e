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

const Tensor& checked(const Tensor& output, const std::string& source) {
    const auto values = output.span<float>();
    RG_CHECK(std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); }), source,
             ": expected finite outputs, got NaN or infinity; train the model again, or check the given numbers");
    return output;
}

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

/// Returns the outputs of the network, and then the features of the layer, unless that is "". May be traced.
std::vector<Tensor> Predictor::forward(std::span<const Tensor> in, const std::string& layer) const {
    const LayerOutputs layers;
    const Tensor x = cast(in[0], activations_);
    std::vector<Tensor> results =
        in.size() > 1 ? network_->outputs(x, in[1], Mode::evaluate) : network_->outputs(x, Mode::evaluate);
    RG_CHECK(results.size() == outputs.kinds.size(), source_, ": expected a network with ", outputs.kinds.size(),
             " outputs, got ", results.size());
    if (layer.empty()) return results;
    const Tensor y = layers.of(layer);
    const int64_t n = x.extent(0), k = y.extent(y.shape().rank() - 1);
    results.push_back(cast(global_avg_pool(y.reshape({n, y.numel() / (n * k), 1, k})), DType::f32).reshape({n, k}));
    return results;
}

int64_t Predictor::feature_count(const std::string& layer) const {
    if (layer.empty()) return 0;
    const DryRun without_memory;
    std::vector<Tensor> in{Tensor::empty({1, task.height, task.width, task.channels})};
    if (!outputs.input_numbers.empty()) in.push_back(Tensor::empty({1, std::ssize(outputs.input_numbers)}));
    return forward(in, layer).back().extent(1);
}

Predictor::Predictions Predictor::predict(int64_t n, const data::ReadImage& read, std::span<const float> numbers,
                                          const std::string& layer) {
    const std::lock_guard lock(in_use_);
    data::LoadOptions options;
    options.channels = int(task.channels), options.height = resize.height, options.width = resize.width;
    data::Conversion conversion(options);
    const data::ImageSet set = conversion
                                   .read(
                                       n, [](int64_t i) { return cat("image ", i); }, read)
                                   .set;
    return predict({set.pixels.data(), size_t(set.pixels.size())}, numbers, layer);
}

Predictor::Predictions Predictor::predict(std::span<const data::Image> images, std::span<const float> numbers,
                                          const std::string& layer) {
    return predict(
        std::ssize(images), [&](int64_t i) { return images[size_t(i)]; }, numbers, layer);
}

Predictor::Predictions Predictor::predict(std::span<const uint8_t> pixels, std::span<const float> numbers,
                                          const std::string& layer) {
    const std::lock_guard lock(in_use_);
    const int64_t bytes = resize.height * resize.width * task.channels, n = std::ssize(pixels) / bytes,
                  values = task.height * task.width * task.channels;
    RG_CHECK(n * bytes == std::ssize(pixels) && n > 0, "predict: expected images of ", resize.height, " x ",
             resize.width, " pixels, ", bytes, " bytes each, got ", pixels.size(), " bytes; resize them");
    const int64_t k = std::ssize(outputs.input_numbers);
    RG_CHECK(std::ssize(numbers) == n * k, "predict: expected ", k, " numbers for each of ", n, " images, got ",
             numbers.size(), "; give those of outputs.input_numbers");
    const auto function = [this, layer](std::span<const Tensor> in, bool) { return this->forward(in, layer); };
    Accelerated& forward = forward_.try_emplace(layer, function).first->second;
    forward.keep_prepared = n == 1 || (n <= kFewImages && forward.occupancy() == 0);
    std::vector<Tensor> inputs(1);
    if (k > 0) inputs.push_back(Tensor::empty_on_host({n, k})), std::ranges::copy(numbers, inputs[1].data<float>());
    const View central = normaliser_.view(0, 0, 0); // no random changes
    std::vector<Tensor> sums;
    for (const auto& [seen, weight] : views) {
        View view = seen;
        view.y0 += central.y0, view.x0 += central.x0;
        const Tensor& x = inputs[0] = Tensor::empty_on_host({n, task.height, task.width, task.channels});
        parallel(n, [&](int64_t i) {
            normaliser_.apply(pixels.subspan(size_t(i * bytes), size_t(bytes)), view, x.data<float>() + i * values);
        });
        add_weighted(sums, forward(inputs), weight);
    }
    Context host = context();
    host.device = nullptr;
    const ContextScope scope(host);
    Predictions predictions;
    const std::vector<Tensor> results = outputs.in_units(std::move(sums), true);
    if (!layer.empty()) predictions.features = checked(results.back(), source_);
    for (size_t o = 0; o < outputs.kinds.size(); ++o) {
        if (outputs.kinds[o] == "classes") {
            predictions.scores = checked(softmax(results[o]), source_);
            continue;
        }
        const Tensor& output = checked(results[o], source_);
        const int64_t count = output.extent(1);
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
