// See optimizer.h.
#include "models/run/optimizer.h"

#include "core/tape.h"

#include <algorithm>
#include <cmath>

namespace rg {

namespace {

using Entry = Parameters::Entry;

/// Returns a factor for each value of the flat parameters: factor(entry) for all values of that entry, and 1 for the
/// zeros between entries. If all factors are 1, returns an undefined tensor.
template <class F>
Tensor factors_of(const Parameters& parameters, const F& factor) {
    const Tensor values = Tensor::empty_on_host(parameters.values().shape());
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
    : parameters_(parameters), options_(options), rate_and_step_(Tensor::zeros({options.has_momentum() ? 1 : 2})) {
    const Shape& shape = parameters.values().shape();
    if (options.kind == OptimizerKind::muon) {
        RG_CHECK(options.max_norm == 0,
                 "optimizer: expected no limit for the norm of gradients with muon, whose steps ",
                 "do not depend on it, got ", options.max_norm);
        for (const Entry& entry : parameters.entries())
            if (entry.scale_free && entry.rate > 0) {
                RG_CHECK(entry.epochs == Entry::kAllEpochs, "optimizer: expected that muon changes ", entry.name,
                         " in all epochs, got a limit of ", entry.epochs);
                muon_filters_.push_back(&entry);
            }
    }
    if (options.has_momentum())
        state_ = {{"optimizer.velocity", Tensor::zeros(shape)}};
    else
        state_ = {{"optimizer.m", Tensor::zeros(shape)}, {"optimizer.v", Tensor::zeros(shape)}};
    if (options.average > 0) {
        average_ = parameters.all().clone();
        state_.push_back({"optimizer.average", average_});
    }
    if (options.lookahead > 0) {
        slow_ = parameters.all().clone();
        state_.push_back({"optimizer.slow", slow_});
    }
    inputs_.non_finite_at = non_finite_at_;
    if (options.max_norm > 0) inputs_.norm = Tensor::zeros({});
    // A plan keeps using this tensor. So it must exist from the start if a factor differs from 1 in any epoch.
    inputs_.rates = rates_in(rates_epoch_);
    begin_epoch(1);
    inputs_.decays = factors_of(parameters, [&](const Entry& e) {
        return !is_muon_filter(e) && (options.decay_biases || e.shape.rank() > 1) ? double(e.decay) : 0.0;
    });
}

bool Optimizer::is_muon_filter(const Entry& entry) const {
    return std::ranges::find(muon_filters_, &entry) != muon_filters_.end();
}

/// Returns the factors of the learning rate in an epoch for sgdm_update() or adam_update(), or an undefined tensor if
/// all are 1.
Tensor Optimizer::rates_in(int64_t epoch) const {
    return factors_of(parameters_,
                      [&](const Entry& e) { return epoch > e.epochs || is_muon_filter(e) ? 0.0 : double(e.rate); });
}

void Optimizer::begin_epoch(int64_t epoch) {
    const auto changes = [&](const Entry& e) { return (epoch > e.epochs) != (rates_epoch_ > e.epochs); };
    if (!inputs_.rates.defined() || std::ranges::none_of(parameters_.entries(), changes)) return;
    rates_epoch_ = epoch;
    const Tensor rates = rates_in(epoch);
    if (rates.defined())
        inputs_.rates.copy_from(rates);
    else
        inputs_.rates.fill(1);
}

void Optimizer::set(double lr, int64_t step) {
    RG_CHECK(std::isfinite(lr) && lr >= 0 && step >= 1, "optimizer: expected a learning rate of at least 0 and a step ",
             "of at least 1, got ", lr, " and ", step);
    is_set_ = true;
    const std::span<float> next = next_rate_and_step_.span<float>();
    next[0] = float(lr), next[1] = float(step);
    rate_and_step_.copy_from(next_rate_and_step_.slice(0, rate_and_step_.shape()));
}

void Optimizer::update(const Tensor& loss) {
    const NoTape pause;
    RG_CHECK(is_set_, "optimizer: expected set() before update(), got none; it gives the learning rate and the step");
    const Tensor &values = parameters_.values(), &gradients = parameters_.gradients();
    first_non_finite(gradients, loss, non_finite_at_, inputs_.norm);
    const float decay = float(options_.weight_decay), max_norm = float(options_.max_norm);
    if (options_.has_momentum())
        sgdm_update(values, state_[0].value, gradients,
                    {.momentum = float(options_.momentum),
                     .weight_decay = decay,
                     .nesterov = options_.nesterov,
                     .max_norm = max_norm},
                    rate_and_step_, inputs_);
    else
        adam_update(values, state_[0].value, state_[1].value, gradients,
                    {.weight_decay = decay, .decoupled = options_.kind == OptimizerKind::adamw, .max_norm = max_norm},
                    rate_and_step_, inputs_);
    update_muon_filters();
}

/// Updates the filters that muon treats in its own way. sgdm_update() has updated their velocities already.
void Optimizer::update_muon_filters() {
    for (const Entry* filter : muon_filters_) {
        const int64_t k = filter->shape[0];
        const Shape matrix{k, filter->shape.numel() / k};
        const Tensor value = filter->value.reshape(matrix), velocity = state_[0].value.slice(filter->offset, matrix);
        const Tensor step = options_.nesterov
                                ? add(filter->gradient.reshape(matrix), scale(velocity, float(options_.momentum)))
                                : velocity;
        const Tensor norm = run(op::first_non_finite, {value}, FirstNonFiniteOp{true})[FirstNonFiniteOp::norm];
        rescale_update(value, norm, std::sqrt(float(k)), orthogonalised(step), filter->rate, rate_and_step_,
                       non_finite_at_);
    }
}

void Optimizer::end_step(int64_t step, int64_t steps) {
    const NoTape pause;
    constexpr int64_t kInterval = 5;
    RG_CHECK(!Scope::current().trace,
             "optimizer: expected end_step() after a traced function, got it in the function, ",
             "whose replays would repeat this step's weights");
    if (average_.defined())
        average_update(average_, parameters_.all(), std::min(options_.average, double(1 + step) / double(10 + step)));
    if (!slow_.defined() || (step % kInterval != 0 && step != steps)) return;
    const double progress = double(step) / double(steps);
    if (step % kInterval == 0)
        average_update(slow_, parameters_.all(), options_.lookahead * progress * progress * progress);
    parameters_.all().copy_from(slow_);
}

void Optimizer::reset_averages() {
    const NoTape pause;
    for (const Tensor* average : {&average_, &slow_})
        if (average->defined()) average->copy_from(parameters_.all());
}

void Optimizer::exchange_average() {
    const NoTape pause;
    if (!average_.defined()) return;
    const Tensor current = parameters_.all().clone();
    parameters_.all().copy_from(average_);
    average_.copy_from(current);
}

} // namespace rg
