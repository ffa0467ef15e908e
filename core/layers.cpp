// Implements the layers with the functions of ops.h.
#include "core/layers.h"

#include <algorithm>

namespace rg {

namespace {
using Start = Parameters::Entry::Start;

void expect_allocated(const Tensor* weights) {
    RG_CHECK(weights, "layer: expected a layer with parameters, got a default one; assign a layer first");
    RG_CHECK(weights->defined(), "layer: expected allocated parameters, got none; call Parameters::allocate() ",
             "after all layers are made");
}

Tensor value_or_none(const Tensor* parameter) { return parameter ? *parameter : Tensor(); }

thread_local LayerOutputs* layer_outputs = nullptr;

} // namespace

Tensor stage(const std::string& name, const Tensor& x) {
    if (layer_outputs) layer_outputs->outputs_.emplace_back(name, x);
    return x;
}

LayerOutputs::LayerOutputs() : current_(layer_outputs, this) {}

const Tensor& LayerOutputs::of(const std::string& name) const {
    const Tensor* last = nullptr;
    std::string names;
    for (const auto& [part, output] : outputs_) {
        if ((part + ".").starts_with(name + ".")) last = &output;
        const std::string outermost = part.substr(0, part.find('.')) + " ";
        if (!(" " + names).ends_with(" " + outermost)) names += outermost;
    }
    RG_CHECK(last, "features: expected a layer of ", names, "or one within these, got ", name);
    return *last;
}

Norm::Norm(Parameters& parameters, const std::string& name, const Spec& s)
    : name_(name),
      gamma_(&parameters.add(name + ".weight", {s.channels}, s.zero_gamma ? Start::zeros : Start::ones)),
      beta_(&parameters.add(name + ".bias", {s.channels}, Start::zeros)),
      state_(&parameters.add_state(name, s.channels, s.options.momentum)),
      activation_(s.activation),
      options_(s.options) {
    if (!options_.scale) parameters.entry(name + ".weight").rate = 0;
}

Tensor Norm::operator()(const Tensor& x, Mode mode) const {
    const LayerScope layer(name_);
    expect_allocated(gamma_);
    return stage(name_, is_fixed(mode) ? evaluate(x) : train(x, channel_stats(x)));
}

Tensor Norm::train(const Tensor& x, const Tensor& local_stats) const {
    const Tensor stats = combine_stats(local_stats);
    update_running(state_->running, stats, x.extent(0), x.extent(1) * x.extent(2), options_.momentum);
    return normalise(x, stats, false);
}

Tensor Norm::evaluate(const Tensor& x) const { return normalise(x, state_->running, true); }

Tensor Norm::normalise(const Tensor& x, const Tensor& stats, bool frozen) const {
    return batch_norm(x, stats, *gamma_, *beta_,
                      {.epsilon = options_.epsilon, .activation = activation_, .frozen = frozen});
}

// conv2d() throws Error for an invalid number of groups.
Convolution::Convolution(Parameters& parameters, const std::string& name, const Spec& s)
    : name_(name),
      w_(&parameters.add(name + ".weight", {s.out, s.kernel.h, s.kernel.w, s.in / std::max<int64_t>(1, s.conv.groups)},
                         Start::random)),
      b_(s.bias ? &parameters.add(name + ".bias", {s.out}, Start::zeros) : nullptr),
      conv_(s.conv) {
    // Numbers in the order of other libraries (in, out, kernel) give filters as large as a number of channels.
    const int64_t k = s.kernel.h;
    RG_CHECK(k != s.kernel.w || k <= 11 || k <= 2 * s.conv.stride.h || k <= 4 * s.conv.pad.h, "convolution ", name,
             ": expected {out, kernel, in} with a kernel of at most 11, or a stride or padding that fit a larger one, ",
             "got {", s.out, ", ", k, ", ", s.in, "}; mind the order, or use Dense for filters of the image's size");
}

Tensor Convolution::operator()(const Tensor& x) const {
    const LayerScope layer(name_);
    expect_allocated(w_);
    return stage(name_, conv2d(x, *w_, value_or_none(b_), conv_));
}

ConvNorm::ConvNorm(Parameters& parameters, const std::string& layer, const Names& names, const Spec& s)
    : name_(layer),
      conv_(parameters, names.conv, {s.out, s.kernel, s.in, s.conv, s.bias}),
      norm_(parameters, names.norm, {s.out, s.activation, s.zero_gamma, s.norm}) {
    parameters.entry(names.conv + ".weight").scale_free = true;
}

Tensor ConvNorm::operator()(const Tensor& x, Mode mode) const {
    const LayerScope layer(name_);
    expect_allocated(conv_.w_);
    const Tensor &w = *conv_.w_, bias = value_or_none(conv_.b_);
    if (norm_.is_fixed(mode)) return stage(name_, norm_.evaluate(conv2d(x, w, bias, conv_.conv_)));
    // The op also computes the batch statistics. This is faster than channel_stats(y), since most kernels add up the
    // values of y while these are in cache or in registers.
    const auto [y, local_stats] = conv2d_stats(x, w, bias, conv_.conv_);
    return stage(name_, norm_.train(y, local_stats));
}

LayerNorm::LayerNorm(Parameters& parameters, const std::string& name, int64_t channels, float epsilon)
    : name_(name),
      gamma_(&parameters.add(name + ".weight", {channels}, Start::ones)),
      beta_(&parameters.add(name + ".bias", {channels}, Start::zeros)),
      epsilon_(epsilon) {}

Tensor LayerNorm::operator()(const Tensor& x) const {
    const LayerScope layer(name_);
    expect_allocated(gamma_);
    return stage(name_, layer_norm(x, *gamma_, *beta_, epsilon_));
}

Tensor Dropout::operator()(const Tensor& x, Mode mode) const {
    RG_CHECK(parameters_, "dropout: expected a layer with parameters, got a default one; assign another one first");
    if (mode == Mode::evaluate) return x;
    // The backward pass needs the seed of this forward pass. Replays of a trace read that of their own step.
    const Tensor& seed = parameters_->step_seed();
    return dropout(x, probability_, DryRun::active() ? seed : seed.clone(), stream_);
}

Dense::Dense(Parameters& parameters, const std::string& name, int64_t out, int64_t in, bool bias)
    : name_(name),
      w_(&parameters.add(name + ".weight", {out, in}, Start::random)),
      b_(bias ? &parameters.add(name + ".bias", {out}, Start::zeros) : nullptr) {}

Tensor Dense::operator()(const Tensor& x) const {
    const LayerScope layer(name_);
    expect_allocated(w_);
    RG_CHECK(x.shape().rank() >= 1 && x.numel() == x.extent(0) * w_->extent(1), "dense: expected ", w_->extent(1),
             " values per sample, got ", x.shape().str());
    stage(name_ + ".input", x);
    return stage(name_, linear(cast(x, w_->dtype()).reshape({x.extent(0), w_->extent(1)}), *w_, value_or_none(b_)));
}

Tensor Network::forward(const Tensor&, Mode) const {
    fail("network: expected one that overrides forward(x, mode) or outputs(x, mode), got another one; give it the ",
         "numbers that it takes, too");
}

std::vector<Tensor> Network::outputs(const Tensor&, const Tensor&, Mode) const {
    fail("network: expected one that overrides outputs(x, numbers, mode), got another one; give it no numbers");
}

} // namespace rg
