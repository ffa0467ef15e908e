// See gradient_sum.h.
#include "models/run/gradient_sum.h"

#include "core/ops.h"
#include "gpu/device.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace rg {

namespace {

/// Smallest size of a bucket; the last one may be smaller. It is large enough that the latency of a message hardly
/// counts, and small enough that the first sums start early.
constexpr int64_t kBucketBytes = 512 * 1024;
/// Only the last bucket is summed after backward. More buckets would make it little smaller, and each adds a latency.
constexpr int64_t kMaxBuckets = 16;
/// check_direct_sums() sums this number of values, or all if there are fewer.
constexpr int64_t kCheckedValues = 1 << 18;

} // namespace

GradientSum::GradientSum(par::Group& group, Parameters& parameters, par::Algorithm algorithm, bool overlap,
                         par::Wire wire)
    : group_(group), parameters_(parameters), algorithm_(algorithm), wire_(wire) {
    if (group.is_single_worker()) return;
    const Tensor& gradients = parameters.gradients();
    RG_CHECK(gradients.dtype() == DType::f32, "GradientSum: expected gradients of type f32, got ",
             name_of(gradients.dtype()), "; allocate the parameters as f32");
    const bool on_device = gradients.device();
    if (on_device) share_with_devices();
    method_ = shared_                       ? Method::direct
              : on_device                   ? Method::through_host
              : overlap && group.size() > 1 ? Method::on_thread
                                            : Method::at_once;
    const size_t bytes = size_t(group.most_workers()) * size_t(parameters.gradient_bytes()); // a copy for each worker
    std::byte* const memory = is_direct() ? gradients.bytes_data() : group.allocate_shared(bytes, "gradients").data();
    const int64_t values = gradients.numel();
    memory_ = {reinterpret_cast<float*>(memory), size_t(values)};
    if (!on_device) parameters.place_gradients(memory);
    if (method_ == Method::at_once) return;
    const int64_t min_size = std::max(kBucketBytes / 4, (values + kMaxBuckets - 1) / kMaxBuckets); // in values
    const int64_t size = (min_size + 15) / 16 * 16; // whole cache lines of 64 bytes
    for (int64_t begin = 0; begin < values; begin += size)
        buckets_.push_back({begin, std::min(begin + size, values), 0, cat("gradients, bucket ", buckets_.size())});
    if (on_device) {
        std::vector<size_t> end_bytes;
        for (const Bucket& b : buckets_) end_bytes.push_back(4 * size_t(b.end));
        round_trip_ = gradients.device()->round_trip(is_direct() ? nullptr : memory, gradients.bytes_data(), end_bytes);
    }
    // The thread runs no ops, so it needs no context.
    if (method_ == Method::on_thread)
        thread_ = std::jthread([this](const std::stop_token& stop) { sum_on_thread(stop); });
}

/// Collective. Lets devices sum the gradients in each other's memory, if they can.
void GradientSum::share_with_devices() {
    const size_t in_node = group_.link().node().ranks.size();
    const bool is_shared = algorithm_ == par::Algorithm::automatic || algorithm_ == par::Algorithm::shared,
               by_chain = !group_.sum_order().empty() && int(in_node) < group_.size();
    const bool fits =
        is_shared && !by_chain && group_.most_workers() == 1 && in_node > 1 && in_node <= Device::kMostVectors;
    if (!group_.all(fits, "devices that share nodes")) return; // the nodes may have different numbers of ranks
    why_ = try_sharing();
    if (why_.empty() && !check_direct_sums()) why_ = "they compute wrong sums there";
    if (!why_.empty() || !direct_sums_are_faster()) shared_ = nullptr;
}

/// Returns why devices cannot use each other's memory, or "", the same on all ranks.
std::string GradientSum::try_sharing() {
    const Tensor gradients = parameters_.gradients();
    Device& device = *gradients.device();
    const auto first_problem_of = [&](auto&& attempt) -> std::string { // the same on all ranks
        std::string problem;
        try {
            attempt();
        } catch (const Error& error) {
            problem = cat("rank ", group_.rank(), ": ", error.what());
        }
        const std::vector<std::string> problems = group_.allgather(problem, "problems of devices");
        const auto first = std::ranges::find_if(problems, [](const std::string& p) { return !p.empty(); });
        return first == problems.end() ? "" : *first;
    };

    std::string handle;
    std::string problem = first_problem_of([&] { handle = device.share(gradients.bytes_data()); });
    if (!problem.empty()) return problem;
    const std::vector<std::string> handles = group_.allgather(handle, "shared gradients");
    using Mapped = std::vector<std::shared_ptr<std::byte>>;
    const auto mapped = std::make_shared<Mapped>();
    std::vector<std::byte*> parts;
    const auto open_others = [&] {
        for (const int rank : group_.link().node().ranks) {
            if (rank != group_.rank()) mapped->push_back(device.open_shared(handles[size_t(rank)]));
            parts.push_back(rank == group_.rank() ? gradients.bytes_data() : mapped->back().get());
        }
    };
    problem = first_problem_of(open_others);
    if (!problem.empty()) return problem;
    auto window = std::make_unique<par::SharedWindow>(
        par::SharedWindow{std::move(parts), size_t(gradients.bytes()), mapped, &device});
    shared_ = group_.adopt(std::move(window), "shared gradients");
    return shared_ ? "" : "the ranks of a node share no memory";
}

/// Some machines, such as ones with a wrongly set IOMMU, transfer wrong values between devices. Returns false on all
/// ranks if the devices do so here.
bool GradientSum::check_direct_sums() {
    const Tensor& gradients = parameters_.gradients();
    const int64_t count = std::min(gradients.numel(), kCheckedValues);
    const Tensor checked = gradients.slice(0, {count}), host = Tensor::empty_on_host({count});
    // The sums of 8,000 ranks are exact, in any order.
    const auto value = [](int rank, int64_t i) { return float((rank % 16 + 1) * (i % 127 + 1)); };
    for (int64_t i = 0; i < count; ++i) host.data<float>()[i] = value(group_.rank(), i);
    checked.copy_from(host);
    gradients.device()->synchronize();
    group_.allreduce_sum(std::span(reinterpret_cast<float*>(checked.bytes_data()), size_t(count)), "check of devices",
                         par::Algorithm::shared);
    const Tensor sums = checked.to_host();
    bool right = true;
    for (int64_t i = 0; i < count; ++i) {
        float sum = value(0, i);
        for (int rank = 1; rank < group_.size(); ++rank) sum += value(rank, i);
        right = right && sums.data<float>()[i] == sum;
    }
    gradients.fill(0);
    return group_.all(right, "check of devices");
}

/// Measures both ways with as many values as check_direct_sums(), unless RG_PEER_MEMORY is 1. Sets why_. Returns the
/// same on all ranks.
bool GradientSum::direct_sums_are_faster() {
    if (!group_.all(gpu::peer_memory() != "1", "RG_PEER_MEMORY")) return why_ = "RG_PEER_MEMORY is 1", true;
    const Tensor& gradients = parameters_.gradients();
    Device& device = *gradients.device();
    const size_t count = size_t(std::min(gradients.numel(), kCheckedValues)), bytes = count * sizeof(float);
    const auto sum = [&](std::byte* values) {
        group_.allreduce_sum({reinterpret_cast<float*>(values), count}, "speed of devices", algorithm_, wire_);
    };
    std::byte* const host = group_.allocate_shared(bytes, "speed of devices").data();
    const auto trip = device.round_trip(host, gradients.bytes_data(), {bytes});
    double direct = 1e9, through_host = 1e9; // the best of three times; the first ones include allocations
    for (int i = 0; i < 3; ++i) {
        direct = std::min(direct, device.time_of([&] { sum(gradients.bytes_data()); }));
        through_host = std::min(through_host, device.time_of([&] {
            trip->download(0), trip->wait(0);
            sum(host);
            trip->upload(0);
        }));
    }
    double seconds[] = {direct, through_host};
    group_.allreduce_sum(std::span<double>(seconds), "speed of devices");
    const auto us = [&](int way) { return cat(std::lround(seconds[way] / group_.size() * 1e6), " us"); };
    why_ = cat(us(0), " for ", bytes >> 10, " KiB, through host memory ", us(1));
    return seconds[0] <= seconds[1];
}

GradientSum::~GradientSum() {
    // If active_ is still true, an error has ended the step, and the thread may wait for ranks that will never answer.
    if (active_ && method_ == Method::on_thread) group_.link().fail_all_waits();
    // The memory of a device must not be released before all ranks have unmapped it. After an error, others may never
    // come here, and the job or the task ends anyway.
    if (!shared_ || std::uncaught_exceptions() > exceptions_) return;
    shared_ = nullptr;
    try {
        group_.barrier("shared gradients");
    } catch (const par::PeerFailed&) { // the failed rank reports its error
    } catch (const Error& error) {     // a destructor must not throw
        std::fprintf(stderr, "error: %s\n", error.what());
        group_.link().fail_all_waits();
    }
}

void GradientSum::add_worker(double share) {
    RG_CHECK(++copies_ < group_.workers(group_.rank()),
             "GradientSum: expected add_worker() for all workers but the last");
    const std::span<float> copy(memory_.data() + size_t(copies_) * memory_.size(), memory_.size());
    const Tensor& gradients = parameters_.gradients();
    auto* const memory = reinterpret_cast<std::byte*>(copy.data());
    Tensor::borrow(memory, gradients.shape(), gradients.dtype()).copy_from(gradients);
    par::weigh(copy, share);
    if (shares_ >= 0) shares_ += share;
}

void GradientSum::begin(double share) {
    if (shares_ >= 0 && !group_.is_single_worker()) {
        double all[] = {shares_ + share};
        shares_ = -1;
        group_.allreduce_sum(std::span<double>(all), "shares");
        RG_CHECK(std::abs(all[0] - 1) < 1e-6, "GradientSum: expected shares of the workers that add up to 1, got ",
                 all[0],
                 "; give each rank its part of the mini-batches, by LoaderOptions::first_part and parts, and begin() ",
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
    if (!last_steps_known_) find_last_steps(plan), last_steps_known_ = true;
    const size_t before = ready_;
    for (; ready_ < buckets_.size() && buckets_[ready_].last_step <= step; ++ready_)
        if (round_trip_) start(ready_);
    if (ready_ > before) changed_.notify_all();
    return ready_ > before;
}

void GradientSum::finish() {
    RG_CHECK(active_, "GradientSum: expected begin() before each finish(), got none; give it this rank's share");
    active_ = false;
    copies_ = 0;
    if (group_.is_single_worker()) return;
    if (round_trip_) {
        for (; ready_ < buckets_.size(); ++ready_) start(ready_);
        for (size_t i = 0; i < buckets_.size(); ++i) {
            round_trip_->wait(i);
            sum(buckets_[i]);
            round_trip_->upload(i);
        }
        return;
    }
    parameters_.gradients().note_write();
    if (buckets_.empty()) return sum({0, int64_t(memory_.size()), 0, "gradients"});
    if (!last_steps_known_) { // no bucket has started
        for (const Bucket& bucket : buckets_) sum(bucket);
        return;
    }
    std::unique_lock lock(mutex_);
    ready_ = buckets_.size();
    changed_.notify_all();
    changed_.wait(lock, [&] { return done_ == buckets_.size() || error_; });
    if (error_) std::rethrow_exception(error_);
}

/// Queues the download of a bucket or, with is_direct(), its multiplication by share_, since it stays on the device.
void GradientSum::start(size_t bucket) {
    if (is_direct()) {
        const Bucket& b = buckets_[bucket];
        const std::array values{parameters_.gradients().slice(b.begin, {b.end - b.begin}), Tensor()};
        if (share_ == 0) // 0 * NaN would be NaN
            values[0].fill(0);
        else
            execute(op::scale, {ScaleOp{float(share_)}, values, std::span(values).first(1)});
    }
    round_trip_->download(bucket);
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
    if (!is_direct()) par::weigh(values, share_);
    if (group_.most_workers() == 1) return group_.allreduce_sum(values, bucket.name, algorithm_, wire_);
    group_.sum_over_workers(values, memory_.size(), bucket.name);
}

void GradientSum::find_last_steps(const Plan& plan) {
    const Tensor::Key flat = parameters_.gradients().key();
    for (Bucket& b : buckets_) b.last_step = 0;
    for (size_t s = 0; s < plan.steps().size(); ++s)
        for (const std::span<const Tensor> tensors : {plan.steps()[s].inputs(), plan.steps()[s].outputs()})
            for (const Tensor& t : tensors) {
                if (!t.defined() || t.key().id != flat.id) continue;
                const int64_t begin = (t.key().offset - flat.offset) / 4, end = begin + t.numel();
                for (Bucket& b : buckets_)
                    if (begin < b.end && end > b.begin) b.last_step = s;
            }
}

StepSums::StepSums(par::Group& group, const Parameters& parameters)
    : group_(group), parameters_(parameters), workers_left_(group.workers(group.rank())) {
    if (workers_left_ > 1) running_before_ = parameters.state().clone();
}

std::vector<par::RunningStats> StepSums::blocks() const {
    std::vector<par::RunningStats> blocks;
    if (!running_.defined()) return blocks;
    for (const auto& s : parameters_.states()) {
        if (s.frozen) continue; // the same on all ranks
        float* mean = running_.data<float>() + s.offset;
        blocks.push_back({mean, mean + s.channels, s.channels, double(s.momentum)});
    }
    return blocks;
}

void StepSums::add(double share, std::span<const double> sums) {
    if (!group_.is_single_worker() && !context().sync) running_ = parameters_.state().to_host();
    sum_.add(blocks(), share, sums);
    if (--workers_left_ > 0) parameters_.state().copy_from(running_before_);
}

void StepSums::finish(std::span<double> sums) {
    sum_.finish(group_, blocks(), sums);
    if (!running_.defined()) return;
    running_.note_write();
    if (parameters_.state().device()) parameters_.state().copy_from(running_);
}

} // namespace rg
