// onnx_networks FOLDER COUNT SEED: writes COUNT random networks as ONNX files, and also those of models/nets/.
// tests/e2e/onnx.py compares what ONNX Runtime computes from them with what we compute.
//
// Beside NAME.onnx, the folder gets NAME.in, and NAME.0, NAME.1 and so on: the input and the results of our prediction
// as f32, images as N C H W. networks.json lists {"name", "input": [extents], "outputs": [[extents], ...]}.
#include "core/atomic_file.h"
#include "core/context.h"
#include "core/json.h"
#include "core/options.h"
#include "core/rng.h"
#include "models/nets/networks.h"
#include "models/nets/state_dict.h"
#include "models/run/onnx.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace {

using namespace rg;

/// A network of random layers. outputs() repeats the decisions that the constructor has made.
class RandomNetwork final : public Network {
public:
    RandomNetwork(uint64_t seed, const Shape& image) : rng_(seed, Purpose::test), shape_(image) {
        for (int i = 0; i < 7; ++i) add_layer(cat("layer", i));
        add_head();
        parameters.allocate(seed, Init::he);
        // No value is the initial one, which a wrong node could produce as well.
        for (const auto& e : parameters.entries())
            if (e.shape.rank() == 1)
                for (float& v : e.value.span<float>()) v = 0.5f + rng_.uniform();
        for (const auto& s : parameters.states())
            for (float& v : s.running.span<float>()) v = 0.5f + rng_.uniform();
    }
    std::vector<Tensor> outputs(const Tensor& x, Mode) const override {
        Tensor y = x;
        for (const auto& layer : layers_) y = layer(y);
        return heads_(y);
    }
    Tensor forward(const Tensor& x, Mode mode) const override { return outputs(x, mode)[1]; }

private:
    using Layer = std::function<Tensor(const Tensor&)>;

    int64_t below(int64_t n) { return int64_t(rng_.uniform_below(uint32_t(n))); }

    /// Returns a random geometry for filters of `kernel` that fits the image.
    Conv draw_conv(PerAxis kernel, int64_t groups) {
        Conv conv{.stride = {1 + below(2), 1 + below(2)}, .pad = {below(2), below(3)}, .groups = groups};
        if (kernel.h > 1 && shape_[0] > 4 && shape_[1] > 4) conv.dilation = {1 + below(2), 1 + below(2)};
        return conv;
    }
    /// Returns an activation. The kinds after softplus grow fast, or take only positive values.
    Activation draw_activation() { return {kActivations[below(Activation::softplus + 1)], 0.2f}; }
    void add_conv(const std::string& name) {
        PerAxis kernel{1 + below(3), 1 + below(3)};
        if (shape_[0] < 3 || shape_[1] < 3) kernel = 1;
        const int64_t groups = below(3) == 0 ? shape_[2] : 1, out = groups * (1 + below(6));
        const Conv conv = draw_conv(kernel, groups);
        if (below(2)) {
            const auto layer = std::make_shared<ConvNorm>(
                parameters, name, ConvNorm::Spec{out, kernel, shape_[2], conv, draw_activation(), below(2) == 1});
            layers_.push_back([layer](const Tensor& x) { return (*layer)(x, Mode::evaluate); });
        } else {
            const auto layer = std::make_shared<Convolution>(
                parameters, name, Convolution::Spec{out, kernel, shape_[2], conv, below(2) == 1});
            layers_.push_back([layer](const Tensor& x) { return (*layer)(x); });
        }
        const auto extent = [](int64_t e, int64_t k, int64_t stride, int64_t pad, int64_t dilation) {
            return (e + 2 * pad - (k - 1) * dilation - 1) / stride + 1;
        };
        shape_ = {extent(shape_[0], kernel.h, conv.stride.h, conv.pad.h, conv.dilation.h),
                  extent(shape_[1], kernel.w, conv.stride.w, conv.pad.w, conv.dilation.w), out};
    }
    void add_pool() {
        if (shape_[0] < 3 || shape_[1] < 3) return;
        Pool pool{.window = {1 + below(3), 2 + below(2)}, .stride = {1 + below(2), 1 + below(3)}, .drop_rest = true};
        pool.pad = {below(std::min<int64_t>(2, pool.window.h)), below(2)};
        pool.count_pad = below(2) == 1;
        const bool max = below(2) == 1;
        layers_.push_back([=](const Tensor& x) { return max ? max_pool2d(x, pool) : avg_pool2d(x, pool); });
        shape_ = {(shape_[0] + 2 * pool.pad.h - pool.window.h) / pool.stride.h + 1,
                  (shape_[1] + 2 * pool.pad.w - pool.window.w) / pool.stride.w + 1, shape_[2]};
    }
    void add_activation() {
        const Activation drawn = below(2) ? draw_activation() : kActivations[below(std::size(kActivations))];
        layers_.push_back([=](const Tensor& x) {
            return activation(drawn.kind <= Activation::softplus ? x : sigmoid(x) + 0.1f, drawn);
        });
    }
    void add_arithmetic() {
        const int64_t kind = below(12), size = below(5);
        layers_.push_back([=](const Tensor& x) {
            const Tensor same = sigmoid(x);
            const Tensor other = size == 0   ? global_avg_pool(same)
                                 : size == 1 ? mean(same, {1, 2})
                                 : size == 2 ? sum(same, {-1})
                                 : size == 3 ? Tensor::constant({x.extent(3)}, 0.6)
                                             : same;
            switch (kind) {
            case 0: return x + other;
            case 1: return x - other;
            case 2: return other - x;
            case 3: return other * x;
            case 4: return x / (other + 1);
            case 5: return maximum(x, other);
            case 6: return minimum(other, x);
            case 7: return scale(x, 0.7f);
            case 8: return 0.4f - x;
            case 9: return clamp(x, -0.3f, 0.8f);
            case 10: return scale(x, sigmoid(mean(x)));
            default: return scale(x, sigmoid(sum(slice(x, 3, {2}))));
            }
        });
    }
    void add_layer(const std::string& name) {
        switch (below(8)) {
        case 0:
        case 1: return add_conv(name);
        case 2: return add_pool();
        case 3: return add_activation();
        case 4: return add_arithmetic();
        case 5: {
            // A small epsilon would magnify the rounding of channels that are nearly equal.
            const auto layer = std::make_shared<LayerNorm>(parameters, name, shape_[2], 0.1f);
            return layers_.push_back([layer](const Tensor& x) { return (*layer)(x); });
        }
        case 6: {
            if (shape_.numel() > 1000) return;
            const int64_t factor = 1 + below(3);
            layers_.push_back([=](const Tensor& x) { return concat({x, upsample(x, 1), tanh(x)}); });
            layers_.push_back([=](const Tensor& x) { return upsample(x, factor); });
            shape_ = {shape_[0] * factor, shape_[1] * factor, 3 * shape_[2]};
            return;
        }
        default: // the same elements as another image
            shape_ = {shape_[2], shape_[0], shape_[1]};
            layers_.push_back([s = shape_](const Tensor& x) { return x.reshape({x.extent(0), s[0], s[1], s[2]}); });
        }
    }
    void add_head() {
        const bool global = below(2) == 1;
        const auto fc = std::make_shared<Dense>(parameters, "fc", 5, global ? shape_[2] : shape_.numel());
        const auto norm = std::make_shared<LayerNorm>(parameters, "norm", 5, 0.1f);
        const auto last = std::make_shared<Dense>(parameters, "last", 3, 5);
        heads_ = [=](const Tensor& x) -> std::vector<Tensor> {
            const Tensor y = (*fc)(global ? global_avg_pool(x) : x);
            return {softmax(y), (*last)(gelu((*norm)(y))), x};
        };
    }

    Rng rng_;
    Shape shape_; // of the image after the layers so far
    std::vector<Layer> layers_;
    std::function<std::vector<Tensor>(const Tensor&)> heads_;
};

std::string raw(const Tensor& t) {
    const Tensor values = channels_first(t);
    return {reinterpret_cast<const char*>(values.data<float>()), size_t(values.bytes())};
}
Json extents(const Tensor& t) {
    Json list = Json::array();
    const Tensor values = channels_first(t);
    for (const int64_t extent : values.shape().extents()) list.push(extent);
    return list;
}

/// Writes the files of one network, and adds it to the list. `images` are not normalised.
void write(const std::string& folder, const std::string& name, const Network& network, const Tensor& images,
           const OnnxOptions& options, Json& list) {
    save_onnx(folder + "/" + name + ".onnx", network, {{images.extent(1), images.extent(2), images.extent(3)}}, options);
    write_file_atomic(folder + "/" + name + ".in.0", raw(images));
    const Tensor normalised = images.clone();
    for (int64_t i = 0; i < images.numel(); ++i) {
        const auto c = size_t(i % images.extent(3));
        float& value = normalised.data<float>()[i];
        value = (value - options.normalise.mean[c]) / options.normalise.deviation[c];
    }
    Json results = Json::array();
    int64_t count = 0;
    for (const Tensor& result : network.outputs(normalised, Mode::evaluate)) {
        write_file_atomic(cat(folder, "/", name, ".", count++), raw(result));
        results.push(extents(result));
    }
    list.push(Json::object().set("name", name).set("inputs", Json::array().push(extents(images))).set("outputs", results));
}

Tensor draw_images(const Shape& shape, uint64_t seed) {
    Rng rng(seed, Purpose::test, 1);
    const Tensor images = Tensor::empty_on_host(shape);
    for (float& value : images.span<float>()) value = float(rng.uniform_below(256)) / 255;
    return images;
}

int run(int argc, const char* const* argv) {
    RG_CHECK(argc == 4, "usage: onnx_networks FOLDER COUNT SEED");
    const std::string folder = argv[1];
    const int64_t count = std::atoll(argv[2]);
    const auto seed = uint64_t(std::atoll(argv[3]));
    const Context strict{.strict_fp32 = true};
    const ContextScope scope(strict);
    Json list = Json::array();
    for (int64_t i = 0; i < count; ++i) {
        Rng rng(seed + uint64_t(i), Purpose::test, 2);
        const Tensor images =
            draw_images({3, 5 + rng.uniform_below(6), 5 + rng.uniform_below(6), 1 + rng.uniform_below(3)}, seed);
        const RandomNetwork network(seed + uint64_t(i), {images.extent(1), images.extent(2), images.extent(3)});
        write(folder, cat("random", seed + uint64_t(i)), network, images,
              {.outputs = {"probabilities", "scores", "features"}, .normalise = data::kCifar10}, list);
    }
    struct Known {
        const char* name;
        Shape image;
        std::vector<std::string> outputs;
    };
    for (const auto& [name, image, outputs] : {Known{"cifar", {32, 32, 3}, {"scores"}},
                                               {"digits", {28, 28, 1}, {"scores"}},
                                               {"digits-angles", {28, 28, 1}, {"scores", "angle"}},
                                               {"mobilenet_v2", {96, 96, 3}, {"scores"}},
                                               {"mobilenet_v3_small", {160, 97, 3}, {"scores"}},
                                               {"mobilenet_v3_large", {32, 40, 1}, {"scores"}},
                                               {"resnet18", {70, 66, 1}, {"scores"}},
                                               {"resnet20", {32, 32, 3}, {"scores"}},
                                               {"wrn16-4", {15, 16, 3}, {"scores"}}}) {
        const auto network = NetworkChoice({name}).make({image[0], image[1], image[2], 10, seed});
        // The initial filters of depthwise convolutions are so small that the scores would hardly depend on the images.
        for (const auto& e : network->parameters.entries())
            if (e.shape.rank() == 4 && e.shape[3] == 1 && e.shape[1] > 1)
                for (float& v : e.value.span<float>()) v *= std::sqrt(float(e.shape[0]));
        write(folder, name, *network, draw_images({4, image[0], image[1], image[2]}, seed),
              {.outputs = outputs, .normalise = data::kCifar10}, list);
    }
    write_file_atomic(folder + "/networks.json", list.dump());
    return 0;
}

} // namespace

int main(int argc, char** argv) { return rg::run_main(argc, argv, run); }
