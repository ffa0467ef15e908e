// See digits_net.h.
#include "models/nets/digits_net.h"

namespace rg {

DigitsNet::DigitsNet(const Options& options) {
    layers_.emplace_back(parameters, "layer1", ConvNorm::Spec{20, 5, 1});
    layers_.emplace_back(parameters, "layer2", ConvNorm::Spec{20, 3, 20, {.pad = same(3)}});
    layers_.emplace_back(parameters, "layer3", ConvNorm::Spec{20, 3, 20, {.pad = same(3)}});
    fc_ = Dense(parameters, "fc", options.classes, 24 * 24 * 20);
    parameters.allocate(options.seed, options.init);
}

Tensor DigitsNet::forward(const Tensor& x, Mode mode) const {
    expect_images("digits_net", x, 1, 28);
    Tensor y = x;
    for (const ConvNorm& layer : layers_) y = layer(y, mode);
    return fc_(y);
}

DigitsAnglesNet::DigitsAnglesNet(const Options& options) {
    stem_ = ConvNorm(parameters, "stem", {16, 5, 1, {.pad = same(5)}});
    branch1_ = ConvNorm(parameters, "branch1", {32, 3, 16, {.stride = 2, .pad = same(3)}});
    branch2_ = ConvNorm(parameters, "branch2", {32, 3, 32, {.pad = same(3)}, Activation::none});
    skip_ = ConvNorm(parameters, "skip", {32, 1, 16, {.stride = 2}, Activation::none});
    classify_ = Dense(parameters, "classify", options.classes, 14 * 14 * 32);
    degrees_ = Dense(parameters, "degrees", 1, 14 * 14 * 32);
    parameters.allocate(options.seed, options.init);
}

std::vector<Tensor> DigitsAnglesNet::outputs(const Tensor& x, Mode mode) const {
    expect_images("digits_angles_net", x, 1, 28);
    const Tensor y = stem_(x, mode);
    const Tensor z = relu(add(branch2_(branch1_(y, mode), mode), skip_(y, mode)));
    return {classify_(z), degrees_(z)};
}

void DigitsNets::declare(rg::Options& o) {
    o.add("initializer", &init_, {{"he", Init::he}, {"glorot", Init::glorot}},
          "variance of the initial weights; he: 2 / fan_in; glorot: 2 / (fan_in + fan_out)");
}

std::unique_ptr<Network> DigitsNets::make(const std::string& name, const ImageTask& task) const {
    const DigitsNetOptions options{.classes = task.classes, .seed = task.seed, .init = init_};
    if (name == "digits") return std::make_unique<DigitsNet>(options);
    return std::make_unique<DigitsAnglesNet>(options);
}

} // namespace rg
