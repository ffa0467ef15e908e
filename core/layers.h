// Defines layers. A layer declares its parameters by name, if it has any, and computes its output from its input.
#pragma once

#include "core/ops.h"
#include "core/parameters.h"

namespace rg {

enum class Mode : uint8_t { train, evaluate };

/// Gives a value within a network a name, so that LayerOutputs can find it. Returns x. Layers name their outputs
/// (except Dropout), and Dense also names its input, as NAME.input. Other values need a call, such as the sum at the
/// end of a residual block.
Tensor stage(const std::string& name, const Tensor& x);

/// Keeps the outputs of all layers and stages that its thread computes while it exists.
class LayerOutputs {
public:
    LayerOutputs();
    /// Returns the last output that has this name, or whose name begins with it and a dot: "layer1" finds "layer1.1"
    /// after "layer1.0". Throws Error, which lists the outermost names, if there is none.
    const Tensor& of(const std::string& name) const;

private:
    friend Tensor stage(const std::string& name, const Tensor& x);

    std::vector<std::pair<std::string, Tensor>> outputs_;
    Setting<LayerOutputs*> current_;
};

/// Options of a batch norm that few networks change.
struct NormOptions {
    bool scale = true; // false: the weights get Entry::rate 0 (parameters.h), so Optimizer trains only the bias
    float epsilon = 1e-5f;
    /// Weight of the newest mini-batch in the running statistics. PyTorch calls this weight momentum.
    float momentum = 0.1f;
};

/// Batch norm of images [n h w channels], and an activation. Declares the parameters NAME.weight and NAME.bias,
/// [channels] each, and the running statistics NAME.
class Norm {
public:
    struct Spec {
        int64_t channels = 0;
        Activation activation = Activation::relu;
        bool zero_gamma = false; // true: the weights start at 0, so a residual branch that ends with this norm does too
        NormOptions options = {};
    };
    Norm() = default; // unusable, until another one is assigned
    Norm(Parameters& parameters, const std::string& name, const Spec& spec);
    /// Mode::train uses batch statistics (of all ranks if Context::sync is set) and updates the running statistics.
    /// Mode::evaluate uses the running statistics, and so does Mode::train after Parameters::freeze().
    Tensor operator()(const Tensor& x, Mode mode) const;

private:
    friend class ConvNorm;
    Tensor train(const Tensor& x, const Tensor& local_stats) const;
    Tensor evaluate(const Tensor& x) const;
    Tensor normalise(const Tensor& x, const Tensor& stats, bool frozen) const;
    bool is_fixed(Mode mode) const { return mode == Mode::evaluate || state_->frozen; }

    std::string name_;
    const Tensor *gamma_ = nullptr, *beta_ = nullptr;
    const Parameters::State* state_ = nullptr;
    Activation activation_;
    NormOptions options_;
};

/// Convolution without a norm. Declares the parameters NAME.weight [out kernel.h kernel.w in/groups] and, with a bias,
/// NAME.bias [out]. Throws Error for a k x k kernel with k > 11, unless k <= 2 * stride.h or k <= 4 * pad.h.
class Convolution {
public:
    struct Spec {
        int64_t out = 0;
        PerAxis kernel = 1; // height and width of the filters
        int64_t in = 0;
        Conv conv = {};
        bool bias = true; // false: the convolution has no bias
    };
    Convolution() = default; // unusable, until another one is assigned
    Convolution(Parameters& parameters, const std::string& name, const Spec& spec);
    Tensor operator()(const Tensor& x) const;

private:
    friend class ConvNorm;

    std::string name_;
    const Tensor *w_ = nullptr, *b_ = nullptr; // b_ is null without a bias
    Conv conv_;
};

/// Convolution of images [n h w in], batch norm, and an activation. Declares the parameters NAME.conv.weight,
/// NAME.conv.bias (unless Spec::bias is false), NAME.bn.weight and NAME.bn.bias, and the running statistics NAME.bn.
class ConvNorm {
public:
    struct Spec {
        int64_t out = 0;
        PerAxis kernel = 1; // height and width of the filters
        int64_t in = 0;
        Conv conv = {};
        Activation activation = Activation::relu;
        bool bias = true;        // false: the convolution has no bias
        bool zero_gamma = false; // see Norm::Spec
        NormOptions norm = {};
    };
    /// Names of the convolution and of the batch norm, for a layer that does not call them NAME.conv and NAME.bn.
    struct Names {
        std::string conv, norm;
    };
    ConvNorm() = default; // unusable, until another one is assigned
    ConvNorm(Parameters& parameters, const std::string& name, const Spec& spec)
        : ConvNorm(parameters, name, {name + ".conv", name + ".bn"}, spec) {}
    ConvNorm(Parameters& parameters, const Names& names, const Spec& spec)
        : ConvNorm(parameters, names.conv, names, spec) {}
    Tensor operator()(const Tensor& x, Mode mode) const;

private:
    ConvNorm(Parameters& parameters, const std::string& layer, const Names& names, const Spec& spec);

    std::string name_;
    Convolution conv_;
    Norm norm_;
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

/// Dropout in training; see dropout(). Mode::evaluate returns x itself. The elements that become zero depend on the
/// seed of Parameters::allocate(), on the order of such layers, and on Parameters::begin_step(). Used twice after one
/// begin_step(), an object drops the same elements twice, so give each place of the network an object of its own.
class Dropout {
public:
    Dropout() = default; // unusable, until another one is assigned
    Dropout(Parameters& parameters, float probability)
        : parameters_(&parameters), probability_(probability), stream_(parameters.add_random_stream()) {}
    Tensor operator()(const Tensor& x, Mode mode) const;

private:
    const Parameters* parameters_ = nullptr;
    float probability_ = 0;
    uint32_t stream_ = 0;
};

/// Fully connected layer. Declares the parameters NAME.weight [out in] and, with a bias, NAME.bias [out]. operator()
/// flattens x to [samples in]. It computes in the type of the weights even if x is bf16, and returns a tensor of that
/// type. This type is f32, unless Parameters::allocate() got f64.
class Dense {
public:
    Dense() = default; // unusable, until another one is assigned
    Dense(Parameters& parameters, const std::string& name, int64_t out, int64_t in, bool bias = true);
    Tensor operator()(const Tensor& x) const;

private:
    std::string name_;
    const Tensor *w_ = nullptr, *b_ = nullptr; // b_ is null without a bias
};

/// A network that maps inputs to the scores of classes. A derived class overrides one of the functions below, has
/// layers as members, and may pass `parameters` to their constructors. Its constructor must call parameters.allocate()
/// after all layers are made. It must not write to parameters otherwise, because it also runs without memory (DryRun);
/// ImageTraining::initialise() is for that. Several threads may call Mode::evaluate on one network while none changes
/// its parameters; only one thread may train it. A network cannot be copied: make another one, and copy
/// Parameters::all() into its own.
class Network {
public:
    virtual ~Network() = default;
    /// Returns the scores [samples classes], in the type of the parameters. Norm and Dropout describe the meaning of
    /// `mode`.
    virtual Tensor forward(const Tensor& x, Mode mode) const;
    /// Returns the scores. A network with further heads also returns the values of each, [samples values].
    virtual std::vector<Tensor> outputs(const Tensor& x, Mode mode) const { return {forward(x, mode)}; }
    /// Returns the scores, and the values of further heads, of a network that takes numbers beside x, f32 [samples k].
    /// Throws Error unless a derived class overrides it; the same holds for forward().
    virtual std::vector<Tensor> outputs(const Tensor& x, const Tensor& numbers, Mode mode) const;

    Parameters parameters;
};

} // namespace rg
