// See cifar_net.h. The layers have the names of the modules in tools/pytorch_nets.py.
#include "models/nets/cifar_net.h"

namespace rg {

CifarNet::CifarNet(const Options& options) : options_(options) {
    RG_CHECK(options.width >= 1 && options.depth >= 1 && options.classes >= 1 && options.channels >= 1,
             "cifar_net: expected width, depth, classes and channels of at least 1, got ", options.width, ", ",
             options.depth, ", ", options.classes, " and ", options.channels);
    int64_t channels = options.channels;
    for (int64_t block = 0; block < 3; ++block)
        for (int64_t i = 0; i < options.depth; ++i) {
            const int64_t out = options.width << block;
            layers_.emplace_back(parameters, cat("block", block + 1, ".", i),
                                 ConvNorm::Spec{out, 3, channels, {.pad = same(3)}});
            channels = out;
        }
    fc_ = Dense(parameters, "fc", options.classes, channels);
    parameters.allocate(options.seed, options.init, options.dtype);
}

Tensor CifarNet::forward(const Tensor& x, Mode mode) const {
    expect_images("cifar_net", x, options_.channels, 4); // so that two poolings leave a pixel
    Tensor y = x;
    size_t layer = 0;
    for (int block = 0; block < 3; ++block) {
        for (int64_t i = 0; i < options_.depth; ++i) y = layers_[layer++](y, mode);
        if (block < 2) y = max_pool2d(y, {.window = 2, .stride = 2, .drop_rest = true});
    }
    return fc_(global_avg_pool(y));
}

void CifarNets::declare(rg::Options& o) {
    o.add("width", &options_.width, "cifar: channels of the first block").range(1, 4096);
    o.add("depth", &options_.depth, "cifar: convolutions per block").range(1, 64);
    o.add(
        "initializer", &options_.init,
        {{"he", Init::he}, {"glorot", Init::glorot}, {"narrow-normal", Init::narrow_normal}},
        "cifar: variance of the initial weights; he: 2 / fan_in; glorot: 2 / (fan_in + fan_out); narrow-normal: 1e-4");
}

std::unique_ptr<Network> CifarNets::make(const std::string&, const ImageTask& task) const {
    CifarNet::Options options = options_;
    options.classes = task.classes, options.channels = task.channels, options.seed = task.seed;
    return std::make_unique<CifarNet>(options);
}

} // namespace rg
