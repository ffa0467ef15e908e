// The layers that our networks are made of: parameters by name, and what they compute.
#pragma once

#include "core/ops.h"
#include "core/parameters.h"

namespace rg {

enum class Mode : uint8_t { train, evaluate };

/// Convolution, batch norm, and ReLU if asked. Parameters NAME.conv.weight, NAME.conv.bias, NAME.bn.weight,
/// NAME.bn.bias; running statistics NAME.bn.
class ConvNorm {
public:
    struct Spec {
        int64_t out, kernel, in;
        Conv conv = {};
        bool relu = true;
    };
    ConvNorm(Parameters& parameters, const std::string& name, const Spec& spec);
    /// In training, batch statistics are used (of all ranks under Context::sync), and the running ones updated.
    Tensor operator()(const Tensor& x, Mode mode) const;

    /// Momentum of the running statistics, as PyTorch's: the share of the newest batch.
    static constexpr float kRunningMomentum = 0.1f;

private:
    std::string name_;
    const Tensor &w_, &b_, &gamma_, &beta_, &running_;
    Conv conv_;
    bool relu_;
};

/// Fully connected: NAME.weight [out in], NAME.bias [out]. x is flattened to [n in], and made f32.
class Dense {
public:
    Dense(Parameters& parameters, const std::string& name, int64_t out, int64_t in);
    Tensor operator()(const Tensor& x) const;

private:
    std::string name_;
    const Tensor &w_, &b_;
};

} // namespace rg
