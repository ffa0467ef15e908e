// GradientSum sums the gradients of a training step over the workers of all ranks, and StepSums everything else.
//
// On a device, or with `overlap`, GradientSum works in buckets, and starts with the first ones while backward still
// runs.
//
//     network.after_step = [&](const Plan& plan, size_t step) { return sum.after_step(plan, step); };
//     for (each of this rank's workers but the last) network(inputs, true), sum.add_worker(share);
//     sum.begin(share);      // share: the worker's fraction of the mini-batch
//     network(inputs, true); // this replay starts the sums or downloads of finished buckets
//     sum.finish();          // the gradients are now those of the whole mini-batch
//
// Here `network` is an Accelerated (core/accelerate.h) that computes the gradients of a worker. A Tape does as well;
// then finish() sums all gradients. The loss must be a mean over the samples, since each worker counts by its share of
// them.
//
// All gradients lie in one flat buffer, roughly in the order in which backward finishes them. A bucket is a range of
// this buffer, and buckets are summed in order. On the CPU, with `overlap`, a thread sums them, and only this thread
// may use the group between begin() and finish(). A device needs no thread: after the step that finishes a bucket, the
// bucket's download to host memory is queued. finish() sums each bucket when it has arrived, while the device computes
// or downloads later buckets and uploads earlier ones. If the devices of a node can map each other's memory, the
// buckets stay there: each device adds its slice of the buckets of its node, and writes the sum to all. Only slices
// pass through host memory, and only between nodes. The bits are the same, so the constructor measures both ways and
// chooses the faster one.
#pragma once

#include "core/context.h"
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
    /// Collective. Call it after Parameters::allocate(), and before any code keeps a plan or a tensor of the gradients:
    /// on the CPU with several ranks or workers, it moves the gradients into Group::allocate_shared(). May set them to
    /// 0. The group, the parameters and the device of the gradients must outlive this. `algorithm` and `wire` apply
    /// only if every rank has one worker. Either all ranks have their gradients on devices, or none (see
    /// Compute::group()). `overlap` applies if none has. Without it, finish() sums gradients in host memory on the
    /// caller's thread, all at once. `overlap` must be false if the ranks exchange anything else during backward,
    /// such as batch statistics. It should be false if all ranks share memory: with 4 ranks on 2 cores, the thread
    /// costs 1/10 of the step's time, but the sum itself only 1/300 of it.
    GradientSum(par::Group& group, Parameters& parameters, par::Algorithm algorithm, bool overlap,
                par::Wire wire = par::Wire::full);
    /// Collective if is_direct(), but not while an exception unwinds the stack. If a rank is missing, prints the error
    /// and lets the next wait on the link throw one.
    ~GradientSum();
    GradientSum(const GradientSum&) = delete;
    GradientSum& operator=(const GradientSum&) = delete;

    /// Copies the gradients of a worker, times its `share`, for finish(). Call it for each of this rank's workers but
    /// the last.
    void add_worker(double share);
    /// Begins the step of this rank's last worker. `share` is the fraction of the mini-batch that it computes.
    /// Collective in the first step: with several workers, throws Error on all ranks unless their shares add up to 1.
    void begin(double share);
    /// Starts the sums (on a device: RoundTrip::download()) of the buckets that the plan's steps up to `step` have
    /// finished, if they have not started yet. Returns true if it started any. Does nothing without buckets, or outside
    /// of begin() and finish().
    bool after_step(const Plan& plan, size_t step);
    /// Sums the remaining buckets and blocks until all sums are done. If a sum failed, on this thread or another,
    /// throws its error. Also throws Error without begin() before it.
    void finish();

    /// Returns true if devices sum the gradients in each other's memory.
    bool is_direct() const { return method_ == Method::direct; }
    /// If each node has several ranks with gradients on devices, returns why these sum them in each other's memory, or
    /// why not. Else returns "".
    const std::string& why() const { return why_; }

private:
    /// How this rank takes part in the sums.
    enum class Method : uint8_t {
        none,         // a single worker in all: there is nothing to add
        at_once,      // all gradients, in finish()
        on_thread,    // bucket by bucket, on thread_ during backward
        through_host, // bucket by bucket: to host memory and back to the device
        direct,       // bucket by bucket, by the devices of a node in each other's memory
    };
    struct Bucket {
        int64_t begin, end; // range of the flat buffer, in values
        size_t last_step;   // index of the plan's last step that reads or writes any of these values
        std::string name;   // for error messages
    };
    void share_with_devices();
    std::string try_sharing();
    bool check_direct_sums();
    bool direct_sums_are_faster();
    void start(size_t bucket);
    void find_last_steps(const Plan& plan);
    void sum(const Bucket& bucket) const;
    void sum_on_thread(const std::stop_token& stop);

    par::Group& group_;
    const Parameters& parameters_;
    par::Algorithm algorithm_;
    par::Wire wire_;
    Method method_ = Method::none;
    std::shared_ptr<void> shared_; // result of Group::adopt(), if is_direct()
    const int exceptions_ = std::uncaught_exceptions();
    std::string why_;
    // The gradients of this rank's last worker, in host memory unless is_direct(). Copy i of add_worker() (i = 1, 2,
    // ...) begins i * memory_.size() values after memory_.data().
    std::span<float> memory_;
    int copies_ = 0;                                // number of copies by add_worker() in this step
    std::unique_ptr<Device::RoundTrip> round_trip_; // if the gradients are on a device: to memory_ and back
    bool active_ = false;                           // true between begin() and finish()
    double share_ = 1;
    double shares_ = 0;             // sum of the shares of the first step's workers so far; -1: checked
    std::vector<Bucket> buckets_;   // empty: all gradients are summed at once
    bool last_steps_known_ = false; // true if every last_step is that of this training step's plan

    std::mutex mutex_;
    std::condition_variable_any changed_;
    // ready_: number of buckets that can be summed (on a device: after RoundTrip::download()). done_: number of buckets
    // whose sum on thread_ has ended, with or without an error.
    size_t ready_ = 0, done_ = 0;
    std::exception_ptr error_;
    std::jthread thread_;
};

/// Combines the running statistics of all batch-norm layers, and sums numbers such as the loss, over all workers in one
/// training step (see Group::set_workers()). par/aggregate.h has the formulas. With --sync-bn, the statistics are the
/// same on all ranks already, so only the numbers are summed.
class StepSums {
public:
    /// Both arguments must outlive this. Make the object before the step's first forward pass.
    StepSums(par::Group& group, const Parameters& parameters);
    /// Call this after the backward pass of each of this rank's workers. `share` is the fraction of the mini-batch that
    /// the worker has computed, and `sums` are its numbers. If another worker follows on this rank, resets the
    /// statistics to those before the step.
    void add(double share, std::span<const double> sums);
    /// Collective. Sets the statistics of the network to those of the whole mini-batch. Sets `sums` to the sums of all
    /// workers' numbers, which are not multiplied by the shares.
    void finish(std::span<double> sums);

private:
    std::vector<par::RunningStats> blocks() const;
    par::Group& group_;
    const Parameters& parameters_;
    // running_before_: statistics before the step, if this rank has several workers. running_: those of the worker
    // added last, in host memory; undefined with a single worker in all, and with --sync-bn.
    Tensor running_before_, running_;
    int workers_left_;
    par::RunningStatsSum sum_;
};

/// Sums the statistics of batch norm over all ranks, for --sync-bn. Install it as Context::sync. Before each step, set
/// `fraction` (this rank's share of the mini-batch) and `samples` (images in the mini-batch); else sum() throws Error.
class GroupSync final : public SyncGroup {
public:
    explicit GroupSync(par::Group& group) : group_(group) {}
    void sum(std::span<double> values) override {
        RG_CHECK(samples > 0 && fraction >= 0 && fraction <= 1,
                 "GroupSync: expected samples > 0 and fraction in 0..1, ", "got ", samples, " and ", fraction,
                 "; set them before each step");
        group_.allreduce_sum(values, "batch statistics");
    }

private:
    par::Group& group_;
};

} // namespace rg
