// See cifar_net.h. Names are those of the PyTorch module with the same structure.
#include "models/cifar_net.h"

namespace rg {

CifarNet::CifarNet(const Options& options) : options_(options) {
    using Start = Parameters::Entry::Start;
    RG_CHECK(options.width >= 1 && options.depth >= 1 && options.classes >= 1, "cifar_net: width ", options.width,
             ", depth ", options.depth, ", classes ", options.classes, ": each must be at least 1");
    int64_t channels = 3;
    for (int64_t block = 0; block < 3; ++block)
        for (int64_t i = 0; i < options.depth; ++i) {
            const int64_t out = options.width << block;
            const std::string name = cat("block", block + 1, ".", i);
            layers_.push_back({parameters.add(name + ".conv.weight", {out, 3, 3, channels}, Start::random),
                               parameters.add(name + ".conv.bias", {out}, Start::zeros),
                               parameters.add(name + ".bn.weight", {out}, Start::ones),
                               parameters.add(name + ".bn.bias", {out}, Start::zeros),
                               parameters.add_state(name + ".bn", out)});
            channels = out;
        }
    fc_w_ = &parameters.add("fc.weight", {options.classes, channels}, Start::random);
    fc_b_ = &parameters.add("fc.bias", {options.classes}, Start::zeros);
    parameters.allocate(options.seed, options.init, options.dtype);
}

Tensor CifarNet::conv_bn_relu(const Layer& layer, const Tensor& x, Mode mode) {
    if (mode == Mode::evaluate)
        return batch_norm(conv2d(x, layer.w, layer.b, {.pad = same(3)}), layer.running, layer.gamma, layer.beta,
                          {.relu = true, .frozen = true});
    // The batch statistics are taken by the convolution, while each image of its result is in cache.
    const auto [y, local_stats] = conv2d_stats(x, layer.w, layer.b, {.pad = same(3)});
    const Tensor stats = combine_stats(local_stats);
    update_running(layer.running, stats, y.extent(0), y.extent(1) * y.extent(2), kRunningMomentum);
    return batch_norm(y, stats, layer.gamma, layer.beta, {.relu = true});
}

Tensor CifarNet::forward(const Tensor& x, Mode mode) {
    RG_CHECK(x.shape().rank() == 4 && x.extent(1) == 32 && x.extent(2) == 32 && x.extent(3) == 3,
             "cifar_net: expected images [n 32 32 3], got ", x.shape().str());
    Tensor y = x;
    size_t layer = 0;
    for (int block = 0; block < 3; ++block) {
        for (int64_t i = 0; i < options_.depth; ++i) y = conv_bn_relu(layers_[layer++], y, mode);
        y = block < 2 ? max_pool2d(y, 2, 2) : avg_pool2d(y, 8, 8);
    }
    return linear(cast(y, fc_w_->dtype()).reshape({y.extent(0), y.extent(3)}), *fc_w_, *fc_b_);
}

} // namespace rg
