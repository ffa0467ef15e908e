// Implements the cache of plans, and compares replays with the plain function.
#include "core/accelerate.h"

#include "core/context.h"
#include "core/tape.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace rg {

bool Accelerated::matches(const Signature& s, std::span<const Tensor> in, bool training) const {
    const Context& c = context();
    if (s.training != training || s.strict != c.strict_fp32 || s.sync != (c.sync != nullptr) ||
        s.backend != c.backend || s.device != c.device || s.inputs.size() != in.size())
        return false;
    for (size_t i = 0; i < in.size(); ++i)
        if (!in[i].defined() || s.inputs[i].first != in[i].shape() || s.inputs[i].second != in[i].dtype()) return false;
    return true;
}

Accelerated::CachedPlan& Accelerated::find_or_trace(std::span<const Tensor> in, bool training) {
    RG_CHECK(cache_size >= 1, "accelerate: expected a cache_size of at least 1, got 0");
    for (auto cached = cache_->begin(); cached != cache_->end(); ++cached)
        if (matches(cached->signature, in, training)) {
            cache_->splice(cache_->begin(), *cache_, cached);
            return *cached;
        }
    Signature signature{
        {}, training, context().strict_fp32, context().sync != nullptr, context().backend, context().device};
    std::vector<Tensor> placeholders, results;
    std::vector<Step> steps;
    {
        Trace trace;
        for (const Tensor& t : in) {
            RG_CHECK(t.defined(), "accelerate: expected defined inputs, got an undefined one");
            signature.inputs.push_back({t.shape(), t.dtype()});
            placeholders.push_back(Tensor::empty(t.shape(), t.dtype()));
        }
        results = function_(placeholders, training);
        steps = std::move(trace.steps);
    }
    Tensor arena;
    each_sharing(signature.device, [&](const Plan& other) { arena = other.arena(); });
    Plan plan(std::move(steps), placeholders, results, arena);
    each_sharing(signature.device, [&](Plan& other) { other.move_to(plan.arena()); });
    if (keep_prepared) plan.keep_prepared();
    cache_->push_front({std::move(signature), std::move(plan)});
    return cache_->front();
}

namespace {

/// Returns the inputs. If the context has a device, replaces each input that is elsewhere by a copy on the device.
std::vector<Tensor> on_device(std::span<const Tensor> in) {
    std::vector<Tensor> inputs(in.begin(), in.end());
    for (Tensor& t : inputs)
        if (context().device) t = t.to_device();
    return inputs;
}

} // namespace

std::span<const Tensor> Accelerated::operator()(std::span<const Tensor> in, bool training) {
    const auto call = sharers_->caller.call("Accelerated");
    // In a dry run, too, runs the function itself: a plan that is made there would have no memory.
    if (!enabled || Tape::active() || DryRun::active()) return plain_results_ = function_(on_device(in), training);
    auto& [signature, plan, used] = find_or_trace(in, training);
    ++calls_;
    hits_ += std::exchange(used, true);
    const auto results = check ? replay_and_check(plan, in, training) : plan.replay(in, after_step);
    evict(); // only now: an input may be a result of a plan that evict() frees
    return results;
}

const Plan& Accelerated::plan(std::span<const Tensor> in, bool training) {
    const auto call = sharers_->caller.call("Accelerated");
    const Plan& plan = find_or_trace(in, training).plan;
    evict();
    return plan;
}

void Accelerated::evict() {
    while (cache_->size() > cache_size) cache_->pop_back();
}

int64_t Accelerated::planned_bytes(std::span<const Accelerated* const> several) {
    int64_t bytes = 0;
    std::set<uint64_t> arenas;
    for (const Accelerated* const one : several)
        for (const CachedPlan& cached : *one->cache_) {
            bytes += cached.plan.bytes() - cached.plan.arena_bytes();
            if (arenas.insert(cached.plan.arena().key().id).second) bytes += cached.plan.arena().bytes();
        }
    return bytes;
}

void Accelerated::share_memory(const Accelerated& other) {
    RG_CHECK(cache_->empty(), "share_memory: expected no plans yet, got ", plans(), "; call it first");
    sharers_ = other.sharers_;
    sharers_->caches.push_back(cache_);
}

/// Calls f for each plan for this device whose arena this object shares.
template <class F>
void Accelerated::each_sharing(const Device* device, F f) const {
    for (const std::weak_ptr<Cache>& cache : sharers_->caches)
        if (const std::shared_ptr<Cache> plans = cache.lock())
            for (CachedPlan& cached : *plans)
                if (cached.signature.device == device) f(cached.plan);
}

void Accelerated::clear_cache() {
    const auto call = sharers_->caller.call("Accelerated");
    cache_->clear();
    calls_ = hits_ = 0;
}

namespace {

/// Returns the largest difference between values of a and b, divided by the largest finite magnitude in b. Two equal
/// infinities and two NaNs count as no difference. Any other difference that is not finite makes the result infinity.
double difference(const Tensor& a, const Tensor& b) {
    const Tensor x = a.to_host().to(DType::f64), y = b.to_host().to(DType::f64);
    double largest = 0, scale = 0;
    for (int64_t i = 0; i < x.numel(); ++i) {
        const double p = x.data<double>()[i], q = y.data<double>()[i];
        if (p == q || (std::isnan(p) && std::isnan(q))) continue;
        if (!(std::abs(p - q) < HUGE_VAL)) return HUGE_VAL;
        largest = std::max(largest, std::abs(p - q));
    }
    for (const double v : y.span<double>())
        if (std::isfinite(v)) scale = std::max(scale, std::abs(v));
    return largest == 0 ? 0 : largest / scale;
}

} // namespace

std::span<const Tensor> Accelerated::replay_and_check(Plan& plan, std::span<const Tensor> in, bool training) {
    // Run the plain function first. Then restore the tensors that it wrote, so that the replay starts from the same
    // state.
    std::vector<Tensor> before, expected;
    for (const Tensor& t : plan.written()) before.push_back(t.clone());
    const std::vector<Tensor> plain = function_(on_device(in), training);
    for (size_t i = 0; i < before.size(); ++i) {
        expected.push_back(plan.written()[i].clone());
        plan.written()[i].copy_from(before[i]);
    }
    const std::span<const Tensor> results = plan.replay(in);
    const auto compare = [&](const char* role, size_t i, const Tensor& replayed, const Tensor& plain_value) {
        const double error = difference(replayed, plain_value);
        RG_CHECK(error <= check_tolerance, "accelerate: ", role, " ", i, " of shape ", plain_value.shape().str(),
                 ": expected the plain function's values within ", check_tolerance,
                 " of the largest, got a difference of ", error);
    };
    for (size_t i = 0; i < results.size(); ++i) compare("result", i, results[i], plain[i]);
    for (size_t i = 0; i < expected.size(); ++i) compare("written tensor", i, plan.written()[i], expected[i]);
    return results;
}

} // namespace rg
