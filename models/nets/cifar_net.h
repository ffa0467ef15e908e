// The CIFAR-10 network. It has three blocks of `depth` layers [conv3x3 same - batch norm - relu], with width, 2 width
// and 4 width channels. Max pooling by 2 follows each of the first two blocks. Average pooling by 8 and a dense layer
// follow the third block.
//
// The input is 32 x 32 x 3, the output one score per class. Width 32, depth 4 and 10 classes give 677,610 parameters.
#pragma once

#include "ringgrad/core/layers.h"
#include "ringgrad/core/safetensors.h"

namespace rg {

class CifarNet final : public Network {
public:
    struct Options {
        int64_t width = 32, depth = 4, classes = 10;
        uint64_t seed = 0;
        Init init = Init::he;
        DType dtype = DType::f32; // f64 only for checks on the reference backend
    };
    explicit CifarNet(const Options& options);

    /// Takes images [n 32 32 3] in f32 or bf16.
    Tensor forward(const Tensor& x, Mode mode) const override;

private:
    Options options_;
    std::vector<ConvNorm> layers_;
    Dense fc_;
};

/// Returns the width, depth and classes of the network in a file, from its names and shapes. Throws Error if the file
/// does not hold a CifarNet.
CifarNet::Options infer_network(const TensorFile& file);

} // namespace rg
