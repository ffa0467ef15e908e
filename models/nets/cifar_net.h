// The CIFAR-10 network: three blocks of `depth` times [conv3x3 same - batch norm - relu], at width, 2 width and
// 4 width channels, with max pooling by 2 after the first two; average pooling by 8, fully connected.
//
// 32 x 32 x 3 in, one score per class out. width 32 and depth 4 give 677,610 parameters at 10 classes.
#pragma once

#include "core/layers.h"
#include "core/safetensors.h"

#include <optional>

namespace rg {

class CifarNet {
public:
    struct Options {
        int64_t width = 32, depth = 4, classes = 10;
        uint64_t seed = 0;
        Init init = Init::he;
        DType dtype = DType::f32; // f64 for checks on the reference backend
    };
    explicit CifarNet(const Options& options);

    /// x [n 32 32 3], f32 or bf16 -> scores [n classes], f32. In training, batch statistics are used and the running
    /// ones updated.
    Tensor forward(const Tensor& x, Mode mode) const;

    Parameters parameters;

private:
    Options options_;
    std::vector<ConvNorm> layers_;
    std::optional<Dense> fc_;
};

/// The options with which cifar_net has the tensors of the file. Error: it is of another network.
CifarNet::Options infer_network(const TensorFile& file);

} // namespace rg
