// Implements the layers with the functions of ops.h.
#include "ringgrad/core/layers.h"

#include <algorithm>

namespace rg {

namespace {
using Start = Parameters::Entry::Start;

void expect_allocated(const Tensor* weights) {
    RG_CHECK(weights, "layer: expected a layer with parameters, got a default one; assign a layer first");
    RG_CHECK(weights->defined(), "layer: expected allocated parameters, got none; call Parameters::allocate() ",
             "after all layers are made");
}

/// Returns the shape of the filters. conv2d() reports numbers of groups that are not possible.
template <class Spec>
Shape filters_of(const Spec& s) {
    return {s.out, s.kernel.h, s.kernel.w, s.in / std::max<int64_t>(1, s.conv.groups)};
}

} // namespace

ConvNorm::ConvNorm(Parameters& parameters, const std::string& name, const Spec& s)
    : name_(name),
      w_(&parameters.add(name + ".conv.weight", filters_of(s), Start::random)),
      b_(&parameters.add(name + ".conv.bias", {s.out}, Start::zeros)),
      gamma_(&parameters.add(name + ".bn.weight", {s.out}, Start::ones)),
      beta_(&parameters.add(name + ".bn.bias", {s.out}, Start::zeros)),
      running_(&parameters.add_state(name + ".bn", s.out)),
      conv_(s.conv),
      relu_(s.relu) {}

Tensor ConvNorm::operator()(const Tensor& x, Mode mode) const {
    const LayerScope layer(name_);
    expect_allocated(w_);
    if (mode == Mode::evaluate)
        return batch_norm(conv2d(x, *w_, *b_, conv_), *running_, *gamma_, *beta_, {.relu = relu_, .frozen = true});
    // The convolution also computes the batch statistics, while each image of its result is in cache.
    const auto [y, local_stats] = conv2d_stats(x, *w_, *b_, conv_);
    const Tensor stats = combine_stats(local_stats);
    update_running(*running_, stats, y.extent(0), y.extent(1) * y.extent(2), kRunningMomentum);
    return batch_norm(y, stats, *gamma_, *beta_, {.relu = relu_});
}

ConvBias::ConvBias(Parameters& parameters, const std::string& name, const Spec& s)
    : name_(name),
      w_(&parameters.add(name + ".weight", filters_of(s), Start::random)),
      b_(&parameters.add(name + ".bias", {s.out}, Start::zeros)),
      conv_(s.conv) {}

Tensor ConvBias::operator()(const Tensor& x) const {
    const LayerScope layer(name_);
    expect_allocated(w_);
    return conv2d(x, *w_, *b_, conv_);
}

LayerNorm::LayerNorm(Parameters& parameters, const std::string& name, int64_t channels, float epsilon)
    : name_(name),
      gamma_(&parameters.add(name + ".weight", {channels}, Start::ones)),
      beta_(&parameters.add(name + ".bias", {channels}, Start::zeros)),
      epsilon_(epsilon) {}

Tensor LayerNorm::operator()(const Tensor& x) const {
    const LayerScope layer(name_);
    expect_allocated(gamma_);
    return layer_norm(x, *gamma_, *beta_, epsilon_);
}

Tensor Dropout::operator()(const Tensor& x, const Tensor& seed, Mode mode) const {
    return mode == Mode::evaluate ? x : dropout(x, probability, seed, stream);
}

Dense::Dense(Parameters& parameters, const std::string& name, int64_t out, int64_t in)
    : name_(name),
      w_(&parameters.add(name + ".weight", {out, in}, Start::random)),
      b_(&parameters.add(name + ".bias", {out}, Start::zeros)) {}

Tensor Dense::operator()(const Tensor& x) const {
    const LayerScope layer(name_);
    expect_allocated(w_);
    RG_CHECK(x.shape().rank() >= 1 && x.numel() == x.extent(0) * w_->extent(1), "dense: expected ", w_->extent(1),
             " values per sample, got ", x.shape().str());
    return linear(cast(x, w_->dtype()).reshape({x.extent(0), w_->extent(1)}), *w_, *b_);
}

} // namespace rg
