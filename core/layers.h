// Defines layers. A layer declares its parameters by name, and computes its output from its input.
#pragma once

#include "ringgrad/core/ops.h"
#include "ringgrad/core/parameters.h"

namespace rg {

enum class Mode : uint8_t { train, evaluate };

/// Convolution, batch norm, and optionally ReLU. Declares the parameters NAME.conv.weight, NAME.conv.bias,
/// NAME.bn.weight and NAME.bn.bias, and the running statistics NAME.bn.
class ConvNorm {
public:
    struct Spec {
        int64_t out = 0;
        PerAxis kernel = 1; // height and width of the filters
        int64_t in = 0;
        Conv conv = {};
        bool relu = true;
    };
    ConvNorm() = default; // unusable, until another one is assigned
    ConvNorm(Parameters& parameters, const std::string& name, const Spec& spec);
    /// Mode::train uses batch statistics (of all ranks if Context::sync is set) and updates the running statistics.
    /// Mode::evaluate uses the running statistics.
    Tensor operator()(const Tensor& x, Mode mode) const;

    /// Weight of the newest mini-batch in the running statistics. PyTorch calls this weight momentum.
    static constexpr float kRunningMomentum = 0.1f;

private:
    std::string name_;
    const Tensor *w_ = nullptr, *b_ = nullptr, *gamma_ = nullptr, *beta_ = nullptr, *running_ = nullptr;
    Conv conv_;
    bool relu_ = true;
};

/// Convolution with bias, without a norm. Declares the parameters NAME.weight [out kernel.h kernel.w in/groups] and
/// NAME.bias [out].
class ConvBias {
public:
    struct Spec {
        int64_t out = 0;
        PerAxis kernel = 1; // height and width of the filters
        int64_t in = 0;
        Conv conv = {};
    };
    ConvBias() = default; // unusable, until another one is assigned
    ConvBias(Parameters& parameters, const std::string& name, const Spec& spec);
    Tensor operator()(const Tensor& x) const;

private:
    std::string name_;
    const Tensor *w_ = nullptr, *b_ = nullptr;
    Conv conv_;
};

/// Layer norm over the channels; see layer_norm(). Declares the parameters NAME.weight and NAME.bias, [channels] each.
class LayerNorm {
public:
    LayerNorm() = default; // unusable, until another one is assigned
    LayerNorm(Parameters& parameters, const std::string& name, int64_t channels, float epsilon = 1e-5f);
    Tensor operator()(const Tensor& x) const;

private:
    std::string name_;
    const Tensor *gamma_ = nullptr, *beta_ = nullptr;
    float epsilon_ = 0;
};

/// Dropout in training; see dropout(). Mode::evaluate returns x itself. Layers that share a seed need different values
/// of `stream`.
struct Dropout {
    float probability = 0.5f;
    uint32_t stream = 0;
    /// The seed is i32 [2]; see seed_tensor(). Mode::evaluate does not need it.
    Tensor operator()(const Tensor& x, const Tensor& seed, Mode mode) const;
};

/// Fully connected layer. Declares the parameters NAME.weight [out in] and NAME.bias [out]. operator() flattens
/// x to [n in] and converts it to the type of the weights, f32. Convert its result before concat() with bf16.
class Dense {
public:
    Dense() = default; // unusable, until another one is assigned
    Dense(Parameters& parameters, const std::string& name, int64_t out, int64_t in);
    Tensor operator()(const Tensor& x) const;

private:
    std::string name_;
    const Tensor *w_ = nullptr, *b_ = nullptr;
};

/// A network that maps inputs to the scores of classes. Layers that a derived class declares may use `parameters` in
/// their initialisers. The constructor of the derived class calls parameters.allocate().
class Network {
public:
    virtual ~Network() = default;
    /// Returns the scores [n classes], in f32. Mode::train uses batch statistics and updates the running statistics.
    virtual Tensor forward(const Tensor& x, Mode mode) const = 0;

    Parameters parameters;
};

} // namespace rg
