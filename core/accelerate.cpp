// The cache of plans, and the check of a replay against the plain function.
#include "core/accelerate.h"

#include "core/context.h"
#include "core/tape.h"

#include <cmath>

namespace rg {

bool Accelerated::matches(const Signature& s, std::span<const Tensor> in, bool training) const {
    const Context& c = context();
    if (s.training != training || s.strict != c.strict_fp32 || s.sync != (c.sync != nullptr) ||
        s.backend != c.backend || s.device != c.device || s.inputs.size() != in.size())
        return false;
    for (size_t i = 0; i < in.size(); ++i)
        if (s.inputs[i].first != in[i].shape() || s.inputs[i].second != in[i].dtype()) return false;
    return true;
}

Plan& Accelerated::find_or_trace(std::span<const Tensor> in, bool training, bool& found) {
    for (auto entry = cache_.begin(); entry != cache_.end(); ++entry)
        if (matches(entry->signature, in, training)) {
            found = true;
            cache_.splice(cache_.begin(), cache_, entry);
            return entry->plan;
        }
    found = false;
    RG_CHECK(cache_size >= 1, "accelerate: cache_size needs to be at least 1");
    Signature signature{
        {}, training, context().strict_fp32, context().sync != nullptr, context().backend, context().device};
    std::vector<Tensor> placeholders, results;
    std::vector<Step> steps;
    {
        Trace trace;
        for (const Tensor& t : in) {
            RG_CHECK(t.defined(), "accelerate: an input is undefined");
            signature.inputs.push_back({t.shape(), t.dtype()});
            placeholders.push_back(Tensor::empty(t.shape(), t.dtype()));
        }
        results = function_(placeholders, training);
        steps = std::move(trace.steps);
    }
    Plan plan(std::move(steps), placeholders, results);
    while (cache_.size() >= cache_size) cache_.pop_back();
    cache_.push_front({std::move(signature), std::move(plan)});
    return cache_.front().plan;
}

namespace {

/// The inputs in the memory of the context's device.
std::vector<Tensor> on_device(std::span<const Tensor> in) {
    std::vector<Tensor> there(in.begin(), in.end());
    for (Tensor& t : there)
        if (context().device && t.device() != context().device) {
            const Tensor host = t;
            t = Tensor::empty(host.shape(), host.dtype());
            t.copy_from(host);
        }
    return there;
}

} // namespace

std::span<const Tensor> Accelerated::operator()(std::initializer_list<Tensor> inputs, bool training) {
    const std::span<const Tensor> in(inputs.begin(), inputs.size());
    if (!enabled || Tape::active()) return plain_results_ = function_(on_device(in), training);
    bool found;
    Plan& plan = find_or_trace(in, training, found);
    ++calls_;
    hits_ += found;
    return check ? replay_and_check(plan, in, training) : plan.replay(in, after_step);
}

const Plan& Accelerated::plan(std::initializer_list<Tensor> inputs, bool training) {
    bool found;
    return find_or_trace({inputs.begin(), inputs.size()}, training, found);
}

int64_t Accelerated::planned_bytes() const {
    int64_t bytes = 0;
    for (const Entry& entry : cache_) bytes += entry.plan.bytes();
    return bytes;
}

void Accelerated::clear_cache() {
    cache_.clear();
    calls_ = hits_ = 0;
}

namespace {

/// The largest difference relative to the largest magnitude; infinite when one has a NaN where the other has none.
double difference(const Tensor& a, const Tensor& b) {
    const Tensor x = a.to_host().to(DType::f64), y = b.to_host().to(DType::f64);
    double largest = 0, scale = 0;
    for (int64_t i = 0; i < x.numel(); ++i) {
        const double p = x.data<double>()[i], q = y.data<double>()[i];
        if (p == q || (std::isnan(p) && std::isnan(q))) continue;
        if (!(std::abs(p - q) < HUGE_VAL)) return HUGE_VAL;
        largest = std::max(largest, std::abs(p - q));
        scale = std::max(scale, std::abs(q));
    }
    for (const double v : y.span<double>())
        if (std::isfinite(v)) scale = std::max(scale, std::abs(v));
    return largest == 0 ? 0 : largest / scale;
}

} // namespace

std::span<const Tensor> Accelerated::replay_and_check(Plan& plan, std::span<const Tensor> in, bool training) {
    // The plain function first, from the same state; then everything that it wrote is put back.
    std::vector<Tensor> before, expected;
    for (const Tensor& t : plan.written()) before.push_back(t.clone());
    const std::vector<Tensor> plain = function_(on_device(in), training);
    for (size_t i = 0; i < before.size(); ++i) {
        expected.push_back(plan.written()[i].clone());
        plan.written()[i].copy_from(before[i]);
    }
    const std::span<const Tensor> results = plan.replay(in);
    const auto compare = [&](const char* what, size_t i, const Tensor& replayed, const Tensor& reference) {
        const double error = difference(replayed, reference);
        RG_CHECK(error <= check_tolerance, "accelerate: ", what, " ", i, " of shape ", reference.shape().str(),
                 " differs from the plain function's by ", error, " of its largest value, tolerance ", check_tolerance);
    };
    for (size_t i = 0; i < results.size(); ++i) compare("result", i, results[i], plain[i]);
    for (size_t i = 0; i < expected.size(); ++i) compare("written tensor", i, plan.written()[i], expected[i]);
    return results;
}

} // namespace rg
