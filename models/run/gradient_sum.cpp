// See gradient_sum.h.
#include "ringgrad/models/run/gradient_sum.h"

#include "ringgrad/core/formatted.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>

namespace rg {

namespace {

/// Smallest size of a bucket; the last one may be smaller. It is large enough that the latency of a message hardly
/// counts, and small enough that the first sums start early.
constexpr int64_t kBucketBytes = 512 * 1024;
/// After backward, only the last bucket is left. More buckets would make it little shorter, and each has a latency.
constexpr int64_t kMaxBuckets = 16;

} // namespace

GradientSum::GradientSum(par::Group& group, Parameters& parameters, par::Algorithm algorithm, bool overlap,
                         par::Wire wire)
    : group_(group),
      parameters_(parameters),
      algorithm_(algorithm),
      wire_(wire),
      overlap_(overlap && group.size() > 1) {
    if (group.is_single_worker()) return;
    const Tensor& gradients = parameters.gradients();
    const bool on_device = gradients.device();
    some_on_device_ = !group.all(!on_device, "gradients on devices");
    overlap_ = overlap_ && !some_on_device_;
    stride_ = size_t(gradients.numel());
    const size_t bytes = size_t(group.most_workers()) * size_t(parameters.gradient_bytes());
    std::byte* const memory = group.memory(bytes, "gradients").data();
    memory_ = {reinterpret_cast<float*>(memory), size_t(gradients.numel())};
    if (!on_device) parameters.place_gradients(memory);
    if (!overlap_ && !some_on_device_) return;
    const int64_t min_size = std::max(kBucketBytes / 4, (gradients.numel() + kMaxBuckets - 1) / kMaxBuckets);
    const int64_t size = (min_size + 15) / 16 * 16; // whole cache lines of 64 bytes
    for (int64_t begin = 0; begin < gradients.numel(); begin += size)
        buckets_.push_back(
            {begin, std::min(begin + size, gradients.numel()), 0, cat("gradients, bucket ", buckets_.size())});
    if (on_device) {
        std::vector<size_t> ends;
        for (const Bucket& b : buckets_) ends.push_back(4 * size_t(b.end));
        round_trip_ = gradients.device()->round_trip(memory, gradients.bytes_data(), ends);
    }
    // The thread runs no ops, so it needs no context.
    if (overlap_) thread_ = std::jthread([this](const std::stop_token& stop) { sum_on_thread(stop); });
}

GradientSum::~GradientSum() {
    // If active_ is still true, an error has ended the step, and the thread may wait for ranks that will never answer.
    if (active_ && overlap_) group_.link().fail_all_waits();
}

void GradientSum::keep(double share) {
    RG_CHECK(++kept_ < group_.workers(group_.rank()), "GradientSum: expected keep() for all workers but the last");
    const std::span<float> kept(memory_.data() + size_t(kept_) * stride_, memory_.size());
    const Tensor& gradients = parameters_.gradients();
    auto* const memory = reinterpret_cast<std::byte*>(kept.data());
    Tensor::borrow(memory, gradients.shape(), gradients.dtype()).copy_from(gradients);
    par::weigh(kept, share);
    if (shares_ >= 0) shares_ += share;
}

void GradientSum::begin(double share) {
    if (shares_ >= 0) {
        double all[] = {shares_ + share};
        shares_ = -1;
        group_.allreduce_sum(std::span<double>(all), "shares");
        RG_CHECK(std::abs(all[0] - 1) < 1e-6, "GradientSum: expected shares of the workers that add up to 1, got ",
                 all[0],
                 "; give each rank its part of the mini-batches, by LoaderOptions::rank and ranks, and begin() ",
                 "its fraction of each");
    }
    const std::lock_guard lock(mutex_);
    share_ = share;
    ready_ = done_ = 0;
    last_steps_known_ = false;
    active_ = true;
}

bool GradientSum::after_step(const Plan& plan, size_t step) {
    if (!active_ || buckets_.empty()) return false;
    const std::lock_guard lock(mutex_);
    if (!last_steps_known_) find_last_steps(plan, buckets_), last_steps_known_ = true;
    const size_t before = ready_;
    for (; ready_ < buckets_.size() && buckets_[ready_].last_step <= step; ++ready_)
        if (round_trip_) round_trip_->download(ready_);
    if (ready_ > before) changed_.notify_all();
    return ready_ > before;
}

void GradientSum::finish() {
    active_ = false;
    kept_ = 0;
    if (group_.is_single_worker()) return;
    if (round_trip_) {
        for (; ready_ < buckets_.size(); ++ready_) round_trip_->download(ready_);
        for (size_t i = 0; i < buckets_.size(); ++i) {
            round_trip_->wait(i);
            sum(buckets_[i]);
            round_trip_->upload(i);
        }
        return;
    }
    parameters_.gradients().note_write();
    if (buckets_.empty()) return sum({0, int64_t(memory_.size()), 0, "gradients"});
    if (!overlap_ || !last_steps_known_) { // no bucket has started
        for (const Bucket& bucket : buckets_) sum(bucket);
        return;
    }
    std::unique_lock lock(mutex_);
    ready_ = buckets_.size();
    changed_.notify_all();
    changed_.wait(lock, [&] { return done_ == buckets_.size() || error_; });
    if (error_) std::rethrow_exception(error_);
}

void GradientSum::sum_on_thread(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [&] { return done_ < ready_; })) {
        const Bucket& bucket = buckets_[done_];
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

void GradientSum::sum(const Bucket& bucket) const {
    const std::span<float> values = memory_.subspan(size_t(bucket.begin), size_t(bucket.end - bucket.begin));
    par::weigh(values, share_);
    if (group_.most_workers() == 1) return group_.allreduce_sum(values, bucket.name, algorithm_, wire_);
    group_.sum_over_workers(values, stride_, bucket.name);
}

void GradientSum::find_last_steps(const Plan& plan, std::vector<Bucket>& buckets) const {
    const Tensor::Key flat = parameters_.gradients().key();
    for (Bucket& b : buckets) b.last_step = 0;
    for (size_t s = 0; s < plan.steps().size(); ++s)
        for (const std::span<const Tensor> tensors : {plan.steps()[s].inputs(), plan.steps()[s].outputs()})
            for (const Tensor& t : tensors) {
                if (!t.defined() || t.key().id != flat.id) continue;
                const int64_t begin = (t.key().offset - flat.offset) / 4, end = begin + t.numel();
                for (Bucket& b : buckets)
                    if (begin < b.end && end > b.begin) b.last_step = s;
            }
}

std::string GradientSum::table(const Plan& plan) const {
    if (group_.is_single_worker()) return "";
    if (buckets_.empty()) return "gradients are summed over the ranks at once, after the last step\n";
    std::string text = "gradients are summed over the ranks in buckets, each after a step of the plan:\n";
    std::vector<Bucket> buckets = buckets_;
    find_last_steps(plan, buckets);
    for (const Bucket& b : buckets) {
        text += formatted("%4zu values %" PRId64 " to %" PRId64 ", %.1f KiB\n", b.last_step, b.begin, b.end,
                          double(b.end - b.begin) * 4 / 1024);
    }
    return text;
}

StepSums::StepSums(par::Group& group, const Parameters& parameters)
    : group_(group), parameters_(parameters), workers_left_(group.workers(group.rank())) {
    if (workers_left_ > 1) before_ = parameters.state().clone();
}

std::vector<par::StateBlock> StepSums::blocks() const {
    std::vector<par::StateBlock> blocks;
    if (!state_.defined()) return blocks;
    for (const auto& s : parameters_.states()) {
        if (s.frozen) continue; // the same on all ranks
        float* mean = state_.data<float>() + s.offset;
        blocks.push_back({mean, mean + s.channels, s.channels, double(s.momentum)});
    }
    return blocks;
}

void StepSums::add(double share, std::span<const double> sums) {
    if (!group_.is_single_worker() && !context().sync) state_ = parameters_.state().to_host();
    sum_.add(blocks(), share, sums);
    if (--workers_left_ > 0) parameters_.state().copy_from(before_);
}

void StepSums::finish(std::span<double> sums) {
    sum_.finish(group_, blocks(), sums);
    if (!state_.defined()) return;
    state_.note_write();
    if (parameters_.state().device()) parameters_.state().copy_from(state_);
}

} // namespace rg
