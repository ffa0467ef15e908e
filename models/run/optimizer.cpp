// See optimizer.h.
#include "ringgrad/models/run/optimizer.h"

namespace rg {

namespace {

using Entry = Parameters::Entry;

/// Returns one factor per flat value: factor(entry) for the values of each entry. Returns an undefined tensor if all
/// factors are 1.
template <class F>
Tensor factors_of(const Parameters& parameters, const F& factor) {
    const Tensor values = Tensor::on_host(parameters.values().shape());
    values.fill(1);
    bool needed = false;
    for (const Entry& entry : parameters.entries()) {
        values.slice(entry.offset, {entry.shape.numel()}).fill(factor(entry));
        needed |= factor(entry) != 1;
    }
    if (!needed) return {};
    return values.to_device();
}

} // namespace

Optimizer::Optimizer(const Parameters& parameters, const OptimizerOptions& options)
    : parameters_(parameters),
      options_(options),
      rate_and_step_(Tensor::zeros({options.kind == OptimizerOptions::Kind::sgd ? 1 : 2})) {
    const Shape& shape = parameters.values().shape();
    if (options.kind == OptimizerOptions::Kind::sgd)
        state_ = {{"optimizer.velocity", Tensor::zeros(shape)}};
    else
        state_ = {{"optimizer.m", Tensor::zeros(shape)}, {"optimizer.v", Tensor::zeros(shape)}};
    if (options.average > 0) {
        average_ = parameters.values().clone();
        state_.push_back({"optimizer.average", average_});
    }
    inputs_.non_finite_at = non_finite_at_;
    if (options.max_norm > 0) inputs_.norm = Tensor::zeros({});
    inputs_.rates = factors_of(parameters, [](const Entry& e) { return double(e.rate); });
    inputs_.decays = factors_of(
        parameters, [&](const Entry& e) { return options.decay_biases || e.shape.rank() > 1 ? double(e.decay) : 0.0; });
}

void Optimizer::set(double lr, int64_t step) const {
    const std::span<float> next = next_rate_and_step_.span<float>();
    next[0] = float(lr), next[1] = float(step);
    rate_and_step_.copy_from(next_rate_and_step_.slice(0, rate_and_step_.shape()));
}

void Optimizer::update(const Tensor& loss) const {
    using Kind = OptimizerOptions::Kind;
    const Tensor &values = parameters_.values(), &gradients = parameters_.gradients();
    first_non_finite(gradients, loss, non_finite_at_, inputs_.norm);
    const float decay = float(options_.weight_decay), max_norm = float(options_.max_norm);
    if (options_.kind == Kind::sgd)
        sgdm_update(values, state_[0].value, gradients,
                    {.momentum = float(options_.momentum),
                     .weight_decay = decay,
                     .nesterov = options_.nesterov,
                     .max_norm = max_norm},
                    rate_and_step_, inputs_);
    else
        adam_update(values, state_[0].value, state_[1].value, gradients,
                    {.weight_decay = decay, .decoupled = options_.kind == Kind::adamw, .max_norm = max_norm},
                    rate_and_step_, inputs_);
    if (average_.defined()) average_update(average_, values, options_.average, non_finite_at_);
}

void Optimizer::start_average() const {
    if (average_.defined()) average_.copy_from(parameters_.values());
}

void Optimizer::exchange_average() const {
    if (!average_.defined()) return;
    const Tensor values = parameters_.values().clone();
    parameters_.values().copy_from(average_);
    average_.copy_from(values);
}

} // namespace rg
