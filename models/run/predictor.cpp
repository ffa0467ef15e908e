// See predictor.h.
#include "ringgrad/models/run/predictor.h"

#include "ringgrad/core/cpu/parallel.h"
#include "ringgrad/core/ops.h"

#include <algorithm>
#include <cmath>

namespace rg {

namespace {

Tensor checked(const Tensor& output, const std::string& source) {
    const Tensor host = output.to_host().to(DType::f32);
    const auto values = host.span<float>();
    RG_CHECK(std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); }), source,
             ": expected finite outputs, got others; its values are too large");
    return host;
}

} // namespace

Predictor::Predictor(const std::string& path, DType activations) : Predictor(load_model(path), activations) {}

Predictor::Predictor(const TensorFile& file, DType activations)
    : task(stored_task(file)),
      resize(stored_resize(file)),
      classes(stored_classes(file)),
      targets(stored_targets(file)),
      source_(file.source),
      network_(make_network(file)),
      normaliser_(resize.height, resize.width, task.channels, {}, stored_normalise(file, {}),
                  {task.height, task.width}),
      forward_([this, activations](std::span<const Tensor> in, bool) {
          std::vector<Tensor> outputs = network_->outputs(cast(in[0], activations), Mode::evaluate);
          RG_CHECK(outputs.size() == 1 + targets.size(), source_, ": expected a network with scores and ",
                   targets.size(), " targets, got ", outputs.size(), " outputs");
          outputs[0] = softmax(outputs[0]);
          return outputs;
      }) {
    forward_.keep_prepared = true;
}

Predictor::Outputs Predictor::predict(int64_t n, const data::ReadImage& read) {
    data::LoadOptions options;
    options.channels = int(task.channels), options.height = resize.height, options.width = resize.width;
    data::Conversion conversion(options);
    const data::ImageSet set = conversion
                                   .read(
                                       n, [](int64_t i) { return cat("image ", i); }, read)
                                   .set;
    return predict({set.pixels.data(), size_t(set.pixels.size())});
}

Predictor::Outputs Predictor::predict(std::span<const data::Image> images) {
    return predict(std::ssize(images), [&](int64_t i) { return images[size_t(i)]; });
}

Predictor::Outputs Predictor::predict(std::span<const uint8_t> pixels) {
    const int64_t bytes = resize.height * resize.width * task.channels, n = std::ssize(pixels) / bytes,
                  values = task.height * task.width * task.channels;
    RG_CHECK(n * bytes == std::ssize(pixels) && n > 0, "predict: expected images of ", bytes, " bytes, got ",
             pixels.size(), " bytes");
    const Tensor x = Tensor::on_host({n, task.height, task.width, task.channels});
    parallel(n, [&](int64_t i) {
        normaliser_.apply(pixels.subspan(size_t(i * bytes), size_t(bytes)), 0, 0, i, x.data<float>() + i * values);
    });
    const std::span<const Tensor> outputs = forward_({x});
    Outputs results{checked(outputs[0], source_), {}};
    for (const Tensor& target : outputs.subspan(1)) results.targets.push_back(checked(target, source_));
    return results;
}

} // namespace rg
