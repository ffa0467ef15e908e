// See cifar_net.h. Names are those of the PyTorch module with the same structure.
#include "models/cifar_net.h"

namespace rg {

CifarNet::CifarNet(const Options& options) : options_(options) {
    RG_CHECK(options.width >= 1 && options.depth >= 1 && options.classes >= 1, "cifar_net: width ", options.width,
             ", depth ", options.depth, ", classes ", options.classes, ": each must be at least 1");
    int64_t channels = 3;
    for (int64_t block = 0; block < 3; ++block)
        for (int64_t i = 0; i < options.depth; ++i) {
            const int64_t out = options.width << block;
            layers_.emplace_back(parameters, cat("block", block + 1, ".", i),
                                 ConvNorm::Spec{out, 3, channels, {.pad = same(3)}});
            channels = out;
        }
    fc_.emplace(parameters, "fc", options.classes, channels);
    parameters.allocate(options.seed, options.init, options.dtype);
}

Tensor CifarNet::forward(const Tensor& x, Mode mode) const {
    RG_CHECK(x.shape().rank() == 4 && x.extent(1) == 32 && x.extent(2) == 32 && x.extent(3) == 3,
             "cifar_net: expected images [n 32 32 3], got ", x.shape().str());
    Tensor y = x;
    size_t layer = 0;
    for (int block = 0; block < 3; ++block) {
        for (int64_t i = 0; i < options_.depth; ++i) y = layers_[layer++](y, mode);
        y = block < 2 ? max_pool2d(y, 2, 2) : avg_pool2d(y, 8, 8);
    }
    return (*fc_)(y);
}

} // namespace rg
