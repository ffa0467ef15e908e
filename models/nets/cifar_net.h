// The CIFAR-10 network. It has three blocks of `depth` layers each. A layer is a 3 x 3 convolution that keeps the image
// size, batch norm and ReLU. The blocks have `width`, 2 `width` and 4 `width` channels. Max pooling by 2 follows each
// of the first two blocks. Global average pooling and a dense layer follow the third block.
//
// The output is one score per class. Width 32, depth 4, 3 channels and 10 classes give 677,610 parameters.
#pragma once

#include "models/nets/network_family.h"

namespace rg {

class CifarNet final : public Network {
public:
    struct Options {
        int64_t width = 32, depth = 4, classes = 10, channels = 3;
        uint64_t seed = 0;
        Init init = Init::he;
        DType dtype = DType::f32; // f64 only for checks on the reference backend
    };
    explicit CifarNet(const Options& options);

    /// Takes images [n height width channels] of at least 4 x 4 pixels, in f32 or bf16.
    Tensor forward(const Tensor& x, Mode mode) const override;

private:
    Options options_;
    std::vector<ConvNorm> layers_;
    Dense fc_;
};

/// The family with a single network, "cifar".
class CifarNets final : public NetworkFamily {
public:
    CifarNets() : NetworkFamily({"cifar"}) {}
    void declare(rg::Options& options) override;
    std::unique_ptr<Network> make(const std::string& name, const ImageTask& task) const override;

private:
    CifarNet::Options options_;
};

} // namespace rg
