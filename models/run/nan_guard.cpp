// See nan_guard.h. What went bad first is found by looking at the parameters, which were there before the step; then,
// if the loss is bad, at the running statistics, in the order of the forward pass; then at the gradients, in the flat
// buffer and so in the order in which the backward pass finishes them. Where the forward pass went bad all gradients
// are, and the first of them is but the last layer's.
#include "models/run/nan_guard.h"

#include "core/ops.h"

#include <cmath>

namespace rg {

namespace {

constexpr int kAttempts = 3;

std::string text_of(float value) { return std::isnan(value) ? "nan" : cat(value); } // whose sign means nothing

} // namespace

NanGuard::NanGuard(OnNan policy, Parameters& parameters, const OptimizerState& optimizer, const Position& position)
    : policy_(policy), parameters_(parameters), optimizer_(optimizer) {
    if (policy != OnNan::stop) live_ = {parameters.state()};
    if (policy == OnNan::rollback) {
        live_.push_back(parameters.values());
        for (const NamedTensor& t : optimizer) live_.push_back(t.value);
    }
    for (const Tensor& t : live_) kept_.push_back(t.clone());
    keep(position);
}

Verdict NanGuard::handle_non_finite(Position& position, double loss, const Tensor& non_finite_at,
                                    std::string& warning) {
    const int64_t step = position.step + 1;
    if (non_finite_at.to_host().data<int32_t>()[0] < 0) [[likely]] {
        if (step >= worst_) attempts_ = 0;
        if (policy_ == OnNan::skip) keep(position);
        return Verdict::good;
    }
    const std::string what = cat("step ", step, ": expected finite values, got ", first_bad(loss));
    RG_CHECK(policy_ != OnNan::stop, what, "; is --lr too large? What was saved before is untouched; see --on-nan");
    RG_CHECK(attempts_ < kAttempts, what, ", after ", kAttempts,
             policy_ == OnNan::skip ? " steps in a row that were left out" : " rollbacks in a row",
             "; what was saved before is untouched; is --lr too large?");
    ++attempts_;
    worst_ = std::max(worst_, step);
    restore_kept();
    if (policy_ == OnNan::skip) {
        warning = cat("warning: ", what, "; the step is left out");
        return Verdict::skip;
    }
    position = kept_position_;
    warning = cat("warning: ", what, "; back to step ", position.step, ", attempt ", attempts_, " of ", kAttempts);
    return Verdict::rolled_back;
}

void NanGuard::checkpoint(const Position& position) {
    if (policy_ == OnNan::rollback) keep(position);
}

void NanGuard::check_values() const {
    const std::string bad = bad_values();
    RG_CHECK(bad.empty(), "save: expected finite values, got ", bad,
             "; is --lr too large? What was saved before is untouched");
}

void NanGuard::keep(const Position& position) {
    for (size_t i = 0; i < live_.size(); ++i) kept_[i].copy_from(live_[i]);
    kept_position_ = position;
    kept_tracked_ = parameters_.batches_tracked;
}

void NanGuard::restore_kept() const {
    for (size_t i = 0; i < live_.size(); ++i) live_[i].copy_from(kept_[i]);
    parameters_.batches_tracked = kept_tracked_;
}

std::string NanGuard::first_bad(double loss) const {
    std::string bad = bad_in(parameters_.values(), "parameter");
    if (bad.empty() && !std::isfinite(loss)) {
        bad = bad_statistic(); // summed over the ranks, as all that is looked at here
        if (!bad.empty()) bad += ", from the activations before it";
    }
    if (bad.empty()) bad = bad_in(parameters_.gradients(), "gradient of");
    return bad.empty() ? cat(loss, " as the loss, of finite gradients") : bad;
}

std::string NanGuard::bad_values() const {
    std::string bad = bad_in(parameters_.values(), "parameter");
    for (const auto& [name, value] : optimizer_)
        if (bad.empty()) bad = bad_in(value, name + " of");
    return bad.empty() ? bad_statistic() : bad;
}

/// "nan in block1.0.bn.running_mean", or nothing; the first in the order of the forward pass.
std::string NanGuard::bad_statistic() const {
    for (const Parameters::State& s : parameters_.states()) {
        const Tensor running = s.running.to_host();
        for (int64_t i = 0; i < running.numel(); ++i)
            if (const float value = running.data<float>()[i]; !std::isfinite(value))
                return cat(text_of(value), " in ", s.name, i < s.channels ? ".running_mean" : ".running_var");
    }
    return "";
}

/// "nan in gradient of fc.weight (value 3 of 640)", or nothing.
std::string NanGuard::bad_in(const Tensor& flat, const std::string& of) const {
    first_non_finite(flat, {}, non_finite_at_);
    const int64_t at = non_finite_at_.to_host().data<int32_t>()[0];
    if (at < 0) return "";
    const float value = flat.slice(at, {1}).clone().to_host().data<float>()[0];
    for (const Parameters::Entry& e : parameters_.entries())
        if (at >= e.offset && at < e.offset + e.shape.numel())
            return cat(text_of(value), " in ", of, " ", e.name, " (value ", at - e.offset, " of ", e.shape.numel(),
                       ")");
    return cat(text_of(value), " in ", of, " no tensor (value ", at, " of ", flat.numel(), ")");
}

} // namespace rg
