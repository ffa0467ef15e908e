// Networks for grey images of 28 x 28: one for the digit, and one for the digit and the angle of its rotation.
#pragma once

#include "models/nets/network_family.h"

namespace rg {

struct DigitsNetOptions {
    int64_t classes = 10;
    uint64_t seed = 0;
    Init init = Init::he;
};

/// Three convolutions with 20 filters each, and a dense layer. The first convolution is 5 x 5 without padding; the
/// others are 3 x 3 and keep the size. Batch norm and ReLU follow each convolution. forward() maps images [n 28 28 1]
/// to scores [n classes].
class DigitsNet final : public Network {
public:
    using Options = DigitsNetOptions;
    explicit DigitsNet(const Options& options);
    Tensor forward(const Tensor& x, Mode mode) const override;

private:
    std::vector<ConvNorm> layers_;
    Dense fc_;
};

/// A stem, a residual block and two heads. The stem is a 5 x 5 convolution (16 filters), batch norm and ReLU. The block
/// is relu(branch + skip). The branch is a 3 x 3 convolution with stride 2, batch norm, ReLU, a 3 x 3 convolution and
/// batch norm. The skip is a 1 x 1 convolution with stride 2, and batch norm. The block's convolutions have 32 filters
/// each. Both heads are dense layers: `classify` gives the scores of the classes, `degrees` the angle.
class DigitsAnglesNet final : public Network {
public:
    using Options = DigitsNetOptions;
    explicit DigitsAnglesNet(const Options& options);
    Tensor forward(const Tensor& x, Mode mode) const override { return outputs(x, mode)[0]; }
    /// Returns the scores [n classes] and the angles [n 1].
    std::vector<Tensor> outputs(const Tensor& x, Mode mode) const override;

private:
    ConvNorm stem_, branch1_, branch2_, skip_;
    Dense classify_, degrees_;
};

/// The family of the networks "digits" (DigitsNet) and "digits-angles" (DigitsAnglesNet).
class DigitsNets final : public NetworkFamily {
public:
    DigitsNets() : NetworkFamily({"digits", "digits-angles"}) {}
    void declare(rg::Options& options) override;
    std::unique_ptr<Network> make(const std::string& name, const ImageTask& task) const override;

private:
    Init init_ = Init::he;
};

} // namespace rg
