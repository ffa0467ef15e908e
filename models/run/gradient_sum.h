// Sums gradients over the ranks, in buckets, while backward still runs.
//
//     network.after_step = [&](const Plan& plan, size_t step) { return sum.after_step(plan, step); };
//     sum.begin(share);      // this rank's share of the mini-batch
//     network(inputs, true); // a replay; finished buckets are summed meanwhile
//     sum.finish();          // the gradients are now those of the whole mini-batch
//
// Backward finishes the flat buffer from its beginning to its end, so a bucket is a range of it. Buckets are summed in
// order. On the CPU a thread does this; it owns the group between begin() and finish(). A device runs by itself: after
// the step that ends a bucket, the bucket's download to host memory is queued. finish() sums each bucket as it arrives,
// while the device computes or downloads later buckets and uploads earlier ones.
#pragma once

#include "core/device.h"
#include "core/parameters.h"
#include "core/plan.h"
#include "par/aggregate.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

namespace rg {

class GradientSum {
public:
    /// All arguments, and the device of the gradients, outlive this. Without `overlap`, the CPU sums all gradients at
    /// once in finish(), on the caller's thread. This is required if the ranks exchange anything else during backward
    /// (batch statistics). It is also faster if the ranks share memory: with 4 ranks on 2 cores the thread costs 1/10
    /// of the step, and the sum 1/300.
    GradientSum(par::Group& group, const Parameters& parameters, par::Algorithm algorithm, bool overlap);
    ~GradientSum();
    GradientSum(const GradientSum&) = delete;
    GradientSum& operator=(const GradientSum&) = delete;

    void begin(double share);
    /// Starts the sums of the buckets that this step of the plan has finished. Returns true if there are any.
    bool after_step(const Plan& plan, size_t step);
    /// Sums the other buckets and blocks until all are done. Throws the errors of all sums, on any thread.
    void finish();

    /// Returns a text that says after which step each bucket is summed; empty for a single rank.
    std::string table(const Plan& plan) const;

private:
    struct Bucket {
        int64_t begin, end; // values in the flat buffer
        size_t last_step;   // of the plan: the last that uses any of the values
        std::string name;   // for error messages
    };
    void find_last_steps(const Plan& plan, std::vector<Bucket>& buckets) const;
    void sum(std::span<float> gradients, const Bucket& bucket) const;
    void sum_on_thread(const std::stop_token& stop);

    par::Group& group_;
    const Parameters& parameters_;
    par::Algorithm algorithm_;
    bool overlap_;
    // For gradients on a device: their copy in host memory, which is summed, and the transfers.
    std::span<float> host_gradients_;
    std::unique_ptr<Device::RoundTrip> round_trip_;
    bool active_ = false; // between begin() and finish()
    double share_ = 1;
    std::vector<Bucket> buckets_;   // empty: sum all at once
    bool last_steps_known_ = false; // for the plan of this training step

    std::mutex mutex_;
    std::condition_variable_any changed_;
    // Numbers of buckets: ready to be summed (on a device: with a queued download), and summed.
    size_t ready_ = 0, done_ = 0;
    std::exception_ptr error_;
    std::jthread thread_;
};

} // namespace rg
