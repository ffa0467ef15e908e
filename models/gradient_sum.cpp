// See gradient_sum.h.
#include "models/gradient_sum.h"

#include <algorithm>
#include <cstdio>

namespace rg {

namespace {

/// Large enough that a message's latency is small beside its transfer, small enough that the first leave early.
constexpr int64_t kBucketBytes = 512 * 1024;

} // namespace

GradientSum::GradientSum(par::Group& group, const Parameters& parameters, par::Algorithm algorithm, bool overlap)
    : group_(group), parameters_(parameters), algorithm_(algorithm), overlap_(overlap && group.size() > 1) {
    const Tensor& gradients = parameters.gradients();
    if (group.size() > 1 && gradients.device())
        staging_ = Tensor::borrow(group.memory(size_t(gradients.bytes()), "gradients").data(), gradients.shape());
    if (overlap_) thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
}

GradientSum::~GradientSum() {
    // Left by an error: the thread may be waiting for ranks that will not come.
    if (active_ && overlap_) group_.link().give_up();
}

void GradientSum::begin(double share) {
    const std::lock_guard lock(mutex_);
    share_ = share;
    ready_ = done_ = 0;
    planned_ = false;
    active_ = true;
}

void GradientSum::after_step(const Plan& plan, size_t step) {
    if (!active_ || !overlap_) return;
    bool more = false;
    {
        const std::lock_guard lock(mutex_);
        if (!planned_) cut(plan, buckets_), planned_ = true;
        while (ready_ < buckets_.size() && buckets_[ready_].step <= step) ++ready_, more = true;
    }
    if (more) changed_.notify_all();
}

void GradientSum::finish() {
    active_ = false;
    if (group_.size() == 1) return;
    if (!planned_) return sum({0, parameters_.gradients().numel(), 0, "gradients"}); // nothing was started
    std::unique_lock lock(mutex_);
    ready_ = buckets_.size();
    changed_.notify_all();
    changed_.wait(lock, [&] { return done_ == buckets_.size() || error_; });
    if (error_) std::rethrow_exception(error_);
}

void GradientSum::work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [&] { return done_ < ready_; })) {
        const Bucket bucket = buckets_[done_];
        lock.unlock();
        std::exception_ptr error;
        try {
            sum(bucket);
        } catch (...) {
            error = std::current_exception();
        }
        lock.lock();
        ++done_;
        error_ = error;
        if (error_ || done_ == buckets_.size()) changed_.notify_all();
        if (error_) return;
    }
}

void GradientSum::sum(const Bucket& b) const {
    const Tensor bucket = parameters_.gradients().slice(b.begin, {b.end - b.begin});
    const Tensor host = bucket.device() ? staging_.slice(b.begin, {b.end - b.begin}) : bucket;
    if (bucket.device()) host.copy_from(bucket);
    par::aggregate(group_, host.span<float>(), share_, b.name, algorithm_);
    if (bucket.device()) bucket.copy_from(host);
}

void GradientSum::cut(const Plan& plan, std::vector<Bucket>& buckets) const {
    const auto made_by = [&](const Tensor& gradient) { // the last step that writes it
        size_t last = 0;
        for (size_t s = 0; s < plan.steps().size(); ++s)
            for (const Tensor& out : plan.steps()[s].outputs())
                if (out.defined() && out.key() == gradient.key()) last = s;
        return last;
    };
    const auto& entries = parameters_.entries();
    buckets.clear();
    Bucket bucket{0, 0, 0, "bucket 0"};
    for (size_t i = entries.size(); i-- > 0;) { // in order of the flat buffer
        bucket.end = i == 0 ? parameters_.gradients().numel() : entries[i - 1].offset;
        bucket.step = std::max(bucket.step, made_by(entries[i].gradient));
        if ((bucket.end - bucket.begin) * 4 < kBucketBytes && i > 0) continue;
        buckets.push_back(bucket);
        bucket = {bucket.end, bucket.end, 0, "bucket " + std::to_string(buckets.size())};
    }
}

std::string GradientSum::table(const Plan& plan) const {
    if (group_.size() == 1) return "";
    if (!overlap_) return "gradients are summed over the ranks in one piece, after the last step\n";
    std::string text = "gradients are summed over the ranks in buckets, each after a step of the plan:\n";
    char line[96];
    std::vector<Bucket> buckets;
    cut(plan, buckets);
    for (const Bucket& b : buckets) {
        std::snprintf(line, sizeof line, "%4zu values %lld to %lld, %.1f KiB\n", b.step,
                      static_cast<long long>(b.begin), static_cast<long long>(b.end),
                      double(b.end - b.begin) * 4 / 1024);
        text += line;
    }
    return text;
}

} // namespace rg
