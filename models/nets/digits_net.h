// Networks for grey images of 28 x 28: one for the digit, and one for the digit and the angle of its rotation.
#pragma once

#include "ringgrad/models/nets/network_family.h"

namespace rg {

struct DigitsNetOptions {
    int64_t classes = 10;
    uint64_t seed = 0;
    Init init = Init::he;
};

/// conv5x5 (20 filters) - bn - relu - 2 x [conv3x3 same (20 filters) - bn - relu] - fc. forward() maps images
/// [n 28 28 1] to scores [n classes].
class DigitsNet final : public Network {
public:
    using Options = DigitsNetOptions;
    explicit DigitsNet(const Options& options);
    Tensor forward(const Tensor& x, Mode mode) const override;

private:
    std::vector<ConvNorm> layers_;
    Dense fc_;
};

/// A stem, a residual block and two heads. The stem is conv5x5 same (16 filters) - bn - relu. The block adds the output
/// of a branch, conv3x3 same stride 2 - bn - relu - conv3x3 same - bn, and that of a skip, conv1x1 stride 2 - bn, and
/// applies relu to the sum. Its convolutions have 32 filters each. Both heads are dense layers: `classify` gives the
/// scores of the classes, and `degrees` the angle in degrees.
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

/// Has the networks "digits" and "digits-angles".
class DigitsNets final : public NetworkFamily {
public:
    DigitsNets() : NetworkFamily({"digits", "digits-angles"}) {}
    std::unique_ptr<Network> make(const std::string& name, const ImageTask& task) const override;
};

} // namespace rg
