// Gradients summed over the ranks, in buckets, while backward goes on: the first ready first.
//
//     network.after_step = [&](const Plan& plan, size_t step) { return sum.after_step(plan, step); };
//     sum.begin(share);      // this rank's share of the mini-batch
//     network(inputs, true); // a replay: whatever is finished on the way is summed meanwhile
//     sum.finish();          // the rest; the gradients are those of the whole mini-batch
//
// The flat buffer is laid out in the order in which backward finishes it, so that a bucket is a range. Buckets are
// summed one after the other, in order: on a CPU by a thread of their own, which owns the group between begin() and
// finish(). A device works by itself: after the step that ends a bucket it is told to send it to this machine's memory,
// and finish() sums each as it comes, while those after it are being made or on their way, and those before it on their
// way back.
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
    /// overlap: false: on a CPU all in one piece in finish(), on the caller's thread. It must be so where the ranks
    /// exchange anything else during backward (batch statistics), and is faster where they share memory: with 4 ranks
    /// on 2 cores the thread costs a tenth of the step, and the sum a three-hundredth. All arguments outlive this, and
    /// so does the device that the gradients are on.
    GradientSum(par::Group& group, const Parameters& parameters, par::Algorithm algorithm, bool overlap);
    ~GradientSum();
    GradientSum(const GradientSum&) = delete;
    GradientSum& operator=(const GradientSum&) = delete;

    void begin(double share);
    /// Starts the buckets that this step of the plan has ended, and says whether there are any.
    bool after_step(const Plan& plan, size_t step);
    /// Sums the rest and waits for all. Errors of the sums, on whichever thread, come out here.
    void finish();

    /// Which bucket goes when, as text; empty for a single rank.
    std::string table(const Plan& plan) const;

private:
    struct Bucket {
        int64_t begin, end; // values in the flat buffer
        size_t step;        // of the plan: the last that uses any of it
        std::string name;   // for error texts
    };
    void find_steps(const Plan& plan, std::vector<Bucket>& buckets) const;
    void sum(std::span<float> all, const Bucket& bucket) const;
    void work(const std::stop_token& stop);

    par::Group& group_;
    const Parameters& parameters_;
    par::Algorithm algorithm_;
    bool overlap_;
    // Of gradients that are on a device: where they meet the other ranks', and how they come there and back.
    std::span<float> here_;
    std::unique_ptr<Device::RoundTrip> trip_;
    bool active_ = false; // between begin() and finish()
    double share_ = 1;
    std::vector<Bucket> buckets_; // none: in one piece
    bool planned_ = false;        // they know their steps in this step's plan

    std::mutex mutex_;
    std::condition_variable_any changed_;
    size_t ready_ = 0, done_ = 0; // buckets that may be summed, or have been sent for; that are summed
    std::exception_ptr error_;
    std::jthread thread_;
};

} // namespace rg
