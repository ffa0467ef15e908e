// See gradient_sum.h.
#include "models/run/gradient_sum.h"

#include <algorithm>
#include <cstdio>

namespace rg {

namespace {

/// Large enough that a message's latency is small beside its transfer, small enough that the first leave early.
constexpr int64_t kBucketBytes = 512 * 1024;
/// As many vectors as a group keeps plans for, half of them for others.
constexpr int64_t kMostBuckets = par::Group::kPlans / 2;

} // namespace

GradientSum::GradientSum(par::Group& group, const Parameters& parameters, par::Algorithm algorithm, bool overlap)
    : group_(group),
      parameters_(parameters),
      algorithm_(algorithm),
      overlap_(overlap && group.size() > 1 && !parameters.gradients().device()) {
    const Tensor& all = parameters.gradients();
    const bool on_device = all.device() && group.size() > 1;
    if (!overlap_ && !on_device) return;
    const int64_t least = std::max(kBucketBytes / 4, (all.numel() + kMostBuckets - 1) / kMostBuckets);
    const int64_t size = (least + 15) / 16 * 16; // whole cache lines
    for (int64_t begin = 0; begin < all.numel(); begin += size)
        buckets_.push_back({begin, std::min(begin + size, all.numel()), 0, cat("gradients, bucket ", buckets_.size())});
    if (on_device) {
        std::byte* const memory = group.memory(size_t(all.bytes()), "gradients").data();
        here_ = {reinterpret_cast<float*>(memory), size_t(all.numel())};
        std::vector<size_t> ends;
        for (const Bucket& b : buckets_) ends.push_back(4 * size_t(b.end));
        trip_ = all.device()->round_trip(memory, all.bytes_data(), ends);
    }
    // It runs no ops, so it needs no context.
    if (overlap_) thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
}

GradientSum::~GradientSum() {
    // Left by an error: the thread may be waiting for ranks that will not come.
    if (active_ && overlap_) group_.link().fail_all_waits();
}

void GradientSum::begin(double share) {
    const std::lock_guard lock(mutex_);
    share_ = share;
    ready_ = done_ = 0;
    planned_ = false;
    active_ = true;
}

bool GradientSum::after_step(const Plan& plan, size_t step) {
    if (!active_ || buckets_.empty()) return false;
    const std::lock_guard lock(mutex_);
    if (!planned_) find_steps(plan, buckets_), planned_ = true;
    const size_t before = ready_;
    for (; ready_ < buckets_.size() && buckets_[ready_].step <= step; ++ready_)
        if (trip_) trip_->download(ready_);
    if (ready_ > before) changed_.notify_all();
    return ready_ > before;
}

void GradientSum::finish() {
    active_ = false;
    if (group_.size() == 1) return;
    if (trip_) {
        for (; ready_ < buckets_.size(); ++ready_) trip_->download(ready_);
        for (size_t i = 0; i < buckets_.size(); ++i) {
            trip_->wait(i);
            sum(here_, buckets_[i]);
            trip_->upload(i);
        }
        return;
    }
    const std::span<float> all = parameters_.gradients().span<float>();
    if (!planned_) return sum(all, {0, int64_t(all.size()), 0, "gradients"}); // nothing was started
    std::unique_lock lock(mutex_);
    ready_ = buckets_.size();
    changed_.notify_all();
    changed_.wait(lock, [&] { return done_ == buckets_.size() || error_; });
    if (error_) std::rethrow_exception(error_);
}

void GradientSum::work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [&] { return done_ < ready_; })) {
        const Bucket& bucket = buckets_[done_];
        lock.unlock();
        std::exception_ptr error;
        try {
            sum(parameters_.gradients().span<float>(), bucket);
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

void GradientSum::sum(std::span<float> all, const Bucket& bucket) const {
    const std::span<float> values = all.subspan(size_t(bucket.begin), size_t(bucket.end - bucket.begin));
    par::aggregate(group_, values, share_, bucket.name, algorithm_);
}

void GradientSum::find_steps(const Plan& plan, std::vector<Bucket>& buckets) const {
    const Tensor::Key flat = parameters_.gradients().key();
    for (Bucket& b : buckets) b.step = 0;
    for (size_t s = 0; s < plan.steps().size(); ++s)
        for (const std::span<const Tensor> tensors : {plan.steps()[s].inputs(), plan.steps()[s].outputs()})
            for (const Tensor& t : tensors) {
                if (!t.defined() || t.key().id != flat.id) continue;
                const int64_t begin = (t.key().offset - flat.offset) / 4, end = begin + t.numel();
                for (Bucket& b : buckets)
                    if (begin < b.end && end > b.begin) b.step = s;
            }
}

std::string GradientSum::table(const Plan& plan) const {
    if (group_.size() == 1) return "";
    if (buckets_.empty()) return "gradients are summed over the ranks in one piece, after the last step\n";
    std::string text = "gradients are summed over the ranks in buckets, each after a step of the plan:\n";
    char line[96];
    std::vector<Bucket> buckets = buckets_;
    find_steps(plan, buckets);
    for (const Bucket& b : buckets) {
        std::snprintf(line, sizeof line, "%4zu values %lld to %lld, %.1f KiB\n", b.step,
                      static_cast<long long>(b.begin), static_cast<long long>(b.end),
                      double(b.end - b.begin) * 4 / 1024);
        text += line;
    }
    return text;
}

} // namespace rg
