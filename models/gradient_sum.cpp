// See gradient_sum.h.
#include "models/gradient_sum.h"

#include <algorithm>
#include <cstdio>

namespace rg {

namespace {

/// Large enough that a message's latency is small beside its transfer, small enough that the first leave early.
constexpr int64_t kBucketBytes = 512 * 1024;
/// On a device: as many vectors as a group keeps plans for, half of them for others.
constexpr int64_t kMostBuckets = par::Group::kPlans / 2;

} // namespace

GradientSum::GradientSum(par::Group& group, const Parameters& parameters, par::Algorithm algorithm, bool overlap)
    : group_(group),
      parameters_(parameters),
      algorithm_(algorithm),
      overlap_(overlap && group.size() > 1 && !parameters.gradients().device()) {
    if (const Tensor& all = parameters.gradients(); all.device() && group.size() > 1) {
        const size_t bytes = size_t(all.bytes()), count = size_t(all.numel());
        std::byte* const memory = group.memory(bytes, "gradients").data();
        here_ = {reinterpret_cast<float*>(memory), count};
        const size_t least = size_t(std::max(kBucketBytes / 4, (all.numel() + kMostBuckets - 1) / kMostBuckets));
        const size_t bucket = (least + 15) / 16 * 16; // whole cache lines
        std::vector<size_t> byte_ends;
        for (size_t end = 0; end < count;) {
            end = std::min(count, end + bucket);
            ends_.push_back(end);
            byte_ends.push_back(4 * end);
        }
        trip_ = all.device()->round_trip(memory, all.bytes_data(), byte_ends);
    }
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
    if (trip_) {
        trip_->fetch();
        for (size_t i = 0, begin = 0; i < ends_.size(); begin = ends_[i++]) {
            trip_->wait(i);
            sum(here_.subspan(begin, ends_[i] - begin), "gradients");
            trip_->put_back(i);
        }
        return;
    }
    const std::span<float> all = parameters_.gradients().span<float>();
    if (!planned_) return sum(all, "gradients"); // nothing was started
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
            const std::span<float> all = parameters_.gradients().span<float>();
            sum(all.subspan(size_t(bucket.begin), size_t(bucket.end - bucket.begin)), bucket.name);
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

void GradientSum::sum(std::span<float> values, std::string_view what) const {
    par::aggregate(group_, values, share_, what, algorithm_);
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
    if (trip_)
        return cat("gradients are summed over the ranks in ", ends_.size(), ends_.size() == 1 ? " bucket" : " buckets",
                   ", after the last step\n");
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
