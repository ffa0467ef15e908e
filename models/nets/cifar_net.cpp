// See cifar_net.h. The layer names are those of the PyTorch module with the same structure.
#include "ringgrad/models/nets/cifar_net.h"

namespace rg {

CifarNet::CifarNet(const Options& options) : options_(options) {
    RG_CHECK(options.width >= 1 && options.depth >= 1 && options.classes >= 1,
             "cifar_net: expected width, depth and classes of at least 1, "
             "got ",
             options.width, ", ", options.depth, " and ", options.classes);
    int64_t channels = 3;
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
    RG_CHECK(x.shape().rank() == 4 && x.extent(1) == 32 && x.extent(2) == 32 && x.extent(3) == 3,
             "cifar_net: expected images [n 32 32 3], got ", x.shape().str());
    Tensor y = x;
    size_t layer = 0;
    for (int block = 0; block < 3; ++block) {
        for (int64_t i = 0; i < options_.depth; ++i) y = layers_[layer++](y, mode);
        y = block < 2 ? max_pool2d(y, {2, 2}) : avg_pool2d(y, {8, 8});
    }
    return fc_(y);
}

CifarNet::Options infer_network(const TensorFile& file) {
    const auto conv = [](int64_t block, int64_t i) { return cat("block", block, ".", i, ".conv.weight"); };
    CifarNet::Options o;
    o.depth = 0;
    while (file.find(conv(1, o.depth))) ++o.depth;
    const Tensor *first = file.find(conv(1, 0)), *last = file.find("fc.weight");
    RG_CHECK(first && first->shape().rank() == 4 && last && last->shape().rank() == 2, file.source,
             ": expected a network of train_cifar (block1.0.conv.weight, ..., fc.weight), got another file");
    o.width = first->extent(0);
    o.classes = last->extent(0);
    RG_CHECK(o.width >= 1 && o.classes >= 1, file.source, ": expected at least one channel and class, got ", o.width,
             " and ", o.classes);
    // Check the largest layers before the network is allocated. Otherwise a damaged file could make the program
    // allocate far more memory than the file has bytes.
    file.tensor(conv(1, 0), DType::f32, {o.width, 3, 3, 3});
    file.tensor(conv(3, o.depth - 1), DType::f32, {4 * o.width, (o.depth > 1 ? 4 : 2) * o.width, 3, 3});
    file.tensor("fc.weight", DType::f32, {o.classes, 4 * o.width});
    return o;
}

} // namespace rg
