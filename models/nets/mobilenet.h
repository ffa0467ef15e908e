// MobileNets for images of any size. Their tensors have names as in torchvision, for example features.2.conv.1.0.weight
// or features.4.block.2.fc1.bias, so files can be exchanged with torchvision; state_dict.h converts the layouts.
//
// A block expands the channels by a 1 x 1 convolution, filters each channel by itself (a depthwise convolution), and
// reduces the channels by a 1 x 1 convolution without activation. It adds its input to the result if both have the same
// size. Many blocks of version 3 also squeeze and excite: two 1 x 1 convolutions of the mean over all pixels give
// factors of the channels (Hu et al. 2018).
//
//     network             last channels  dense layers  source
//     mobilenet_v2        1280           1             Sandler et al. 2018, "MobileNetV2", table 2
//     mobilenet_v3_small  576            2             Howard et al. 2019, "Searching for MobileNetV3", table 2
//     mobilenet_v3_large  960            2             Howard et al. 2019, table 1
//
// The running statistics of version 3 follow a hundredth of each mini-batch, as in torchvision. So in a training without
// pretrained weights, tests are at chance for the first several hundred steps.
//
// Five convolutions have stride 2. For small images (is_small()), the first two of these have stride 1 instead. The
// strides are not part of a file: one with values for large images fits small ones, too.
#pragma once

#include "models/nets/network_family.h"

namespace rg {

class MobileNet final : public Network {
public:
    struct Options {
        std::string name = "mobilenet_v2";
        int64_t classes = 10, channels = 3;
        double width = 1;          // factor of the channels of all convolutions, which stay multiples of 8
        double dropout = 0.2;      // probability, before the last dense layer
        bool small_images = false; // true: the first two strides are 1
        uint64_t seed = 0;
        DType dtype = DType::f32; // f64 only for checks on the reference backend
    };
    explicit MobileNet(const Options& options);

    /// Takes images [n height width channels] in f32 or bf16.
    Tensor forward(const Tensor& x, Mode mode) const override;

private:
    const Options options_;
    std::vector<NetworkPart> layers_;
};

/// The family of the networks in the table above.
class MobileNets final : public NetworkFamily {
public:
    MobileNets() : NetworkFamily({"mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large"}) {}
    void declare(rg::Options& options) override;
    std::unique_ptr<Network> make(const std::string& name, const ImageTask& task) const override;

private:
    double width_ = 1, dropout_ = 0.2;
};

} // namespace rg
