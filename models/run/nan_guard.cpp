// See nan_guard.h. The search for the cause of a bad step begins with the parameters, which still have their values
// from before the step. If the loss is not finite, the running statistics of batch norm follow, in the order of
// forward. Last come the gradients, in the order of backward. If forward had bad values, most gradients are bad too, so
// the first bad gradient does not show the cause.
#include "models/run/nan_guard.h"

#include "core/ops.h"

#include <cmath>

namespace rg {

namespace {

constexpr int kMaxSkipped = 3;

/// Returns a value as text. The sign of a NaN is omitted, since it means nothing.
std::string value_text(float value) { return std::isnan(value) ? "nan" : cat(value); }

/// Returns "nan in gradient of fc.weight (value 3 of 640)" for the first bad value of a flat buffer, or "". The buffer
/// has the values of Parameters::all() from `begin` on.
std::string describe_buffer(const Parameters& parameters, const Tensor& flat, const std::string& kind,
                            int64_t begin = 0) {
    const Tensor non_finite_at = Tensor::empty({}, DType::i32);
    first_non_finite(flat, {}, non_finite_at);
    const int64_t found = non_finite_at.to_host().data<int32_t>()[0], index = begin + found;
    if (found < 0) return "";
    const float value = flat.slice(found, {1}).clone().to_host().data<float>()[0];
    for (const Parameters::Entry& e : parameters.entries())
        if (index >= e.offset && index < e.offset + e.shape.numel())
            return cat(value_text(value), " in ", kind, e.name, " (value ", index - e.offset, " of ", e.shape.numel(),
                       ")");
    for (const Parameters::State& s : parameters.states())
        if (const int64_t i = index - parameters.values().numel() - s.offset; i >= 0 && i < 2 * s.channels)
            return cat(value_text(value), " in ", kind, s.name, i < s.channels ? ".running_mean" : ".running_var");
    return cat(value_text(value), " in ", kind, "no tensor (value ", index, " of ", flat.numel(), ")");
}

} // namespace

NanGuard::NanGuard(OnNan policy, Parameters& parameters)
    : policy_(policy),
      parameters_(parameters),
      statistics_(policy == OnNan::skip ? parameters.state().clone() : Tensor()),
      batches_tracked_(parameters.batches_tracked) {}

std::string NanGuard::handle_non_finite(int64_t step, double loss, const Tensor& non_finite_at,
                                        const std::function<std::string(const std::string&)>& cause) {
    if (non_finite_at.to_host().data<int32_t>()[0] < 0) [[likely]] {
        skipped_ = 0;
        if (policy_ == OnNan::skip)
            statistics_.copy_from(parameters_.state()), batches_tracked_ = parameters_.batches_tracked;
        return "";
    }
    const std::string what = cat("step ", step, ": expected finite values, got ", cause(describe_cause(loss)));
    RG_CHECK(policy_ == OnNan::skip, what, "; make --lr smaller, or see --on-nan; saved files are unchanged");
    RG_CHECK(skipped_ < kMaxSkipped, what, ", after ", kMaxSkipped,
             " skipped steps in a row; make --lr smaller; saved files are unchanged");
    ++skipped_;
    parameters_.state().copy_from(statistics_), parameters_.batches_tracked = batches_tracked_;
    return cat("warning: ", what, "; skipped the step");
}

std::string NanGuard::describe_cause(double loss) const {
    std::string bad = describe_buffer(parameters_, parameters_.values(), "parameter ");
    if (bad.empty() && !std::isfinite(loss)) {
        bad = describe_buffer(parameters_, parameters_.state(), "", parameters_.values().numel());
        if (!bad.empty()) bad += ", from the activations before it";
    }
    if (bad.empty()) bad = describe_buffer(parameters_, parameters_.gradients(), "gradient of ");
    return bad.empty() ? cat(loss, " as the loss, with finite gradients") : bad;
}

void check_finite(const Parameters& parameters, const OptimizerState& optimizer) {
    std::string bad = describe_buffer(parameters, parameters.values(), "parameter ");
    for (const auto& [name, value] : optimizer)
        if (bad.empty()) bad = describe_buffer(parameters, value, name + " of ");
    if (bad.empty()) bad = describe_buffer(parameters, parameters.state(), "", parameters.values().numel());
    RG_CHECK(bad.empty(), "save: expected finite values, got ", bad, "; make --lr smaller; saved files are unchanged");
}

} // namespace rg
