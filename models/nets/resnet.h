// Residual networks for images of any size. Their tensors have names as in torchvision, for example
// layer1.0.bn2.running_mean. state_dict.h converts the layouts. Files of resnet18 and resnet50 with the stem `imagenet`
// can be exchanged with torchvision.
//
// All networks end with global average pooling and a dense layer. Their convolutions have no bias. A stage is a group
// of consecutive blocks with the same number of channels. A block adds its input to the result of its convolutions. If
// the size or the number of channels changes, a 1 x 1 convolution adapts the input. From the second stage on, the first
// block of a stage has stride 2.
//
//     network   stem      blocks   channels           source
//     resnet20  cifar     3 3 3    16 32 64           He et al. 2015, "Deep residual learning", section 4.2, option B
//     resnet18  by size   2 2 2 2  64 128 256 512     He et al. 2015, table 1
//     resnet50  by size   3 4 6 3  256 512 1024 2048  He et al. 2015, table 1, but with the stride in the 3 x 3
//     wrn16-4   cifar     2 2 2    64 128 256         Zagoruyko and Komodakis 2016, "Wide residual networks"
#pragma once

#include "models/nets/network_family.h"

namespace rg {

/// The first layers. `imagenet` is a 7 x 7 convolution with stride 2, followed by 3 x 3 max pooling with stride 2.
/// `cifar` is a 3 x 3 convolution. `automatic` follows the table above. There, "by size" means `cifar` for
/// ImageTask::is_small(), else `imagenet`.
enum class Stem : uint8_t { automatic, imagenet, cifar };

class ResNet final : public Network {
public:
    struct Options {
        std::string name = "resnet18";
        int64_t classes = 10, channels = 3;
        Stem stem = Stem::cifar;      // must not be automatic
        bool zero_last_gamma = false; // true: the last batch norm of each branch starts with weights 0
        uint64_t seed = 0;
        DType dtype = DType::f32; // f64 only for checks on the reference backend
    };
    explicit ResNet(const Options& options);

    /// Takes images [n height width channels] in f32 or bf16.
    Tensor forward(const Tensor& x, Mode mode) const override;

private:
    const Options options_;
    std::vector<NetworkPart> layers_; // the stem, the blocks, and in wide networks a batch norm
    Dense fc_;
};

/// The family of the networks in the table above.
class ResNets final : public NetworkFamily {
public:
    ResNets() : NetworkFamily({"resnet18", "resnet20", "resnet50", "wrn16-4"}) {}
    void declare(rg::Options& options) override;
    std::unique_ptr<Network> make(const std::string& name, const ImageTask& task) const override;

private:
    Stem stem_ = Stem::automatic;
    bool zero_last_gamma_ = false;
};

} // namespace rg
