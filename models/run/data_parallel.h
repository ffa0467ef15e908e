// Functions and classes for a training on several ranks. They also serve a single rank: then the collective functions
// send no messages.
#pragma once

#include "ringgrad/core/context.h"
#include "ringgrad/core/options.h"
#include "ringgrad/core/parameters.h"
#include "ringgrad/par/aggregate.h"

#include <functional>

namespace rg {

/// Combines the running statistics of all batch-norm layers, and sums other numbers, over all workers in one training
/// step (see Group::set_workers()). par/aggregate.h has the formulas. With --sync-bn, the statistics are the same on
/// all ranks already, so only the other numbers are summed.
class StepSums {
public:
    /// Both arguments must outlive this. Make the object before the step's first forward pass.
    StepSums(par::Group& group, const Parameters& parameters);
    /// Call this after the backward pass of each of this rank's workers. `share` is the fraction of the mini-batch that
    /// the worker has computed, and `sums` are its other numbers. If another worker follows on this rank, resets the
    /// statistics to those before the step.
    void add(double share, std::span<const double> sums);
    /// Collective. Sets the statistics of the network to those of the whole mini-batch. Sets `sums` to the sums of the
    /// other numbers over all workers, without weights.
    void finish(std::span<double> sums);

private:
    std::vector<par::StateBlock> blocks() const;
    par::Group& group_;
    const Parameters& parameters_;
    // before_: statistics before the step, if this rank has several workers. state_: those of the worker added last, in
    // host memory; undefined with a single worker in all, and with --sync-bn.
    Tensor before_, state_;
    int workers_left_;
    par::StateSum sum_;
};

/// Collective. Runs `work` on another thread, in the caller's context, and blocks until all ranks are done. (A single
/// rank without `pulse` runs it directly.) Meanwhile the calling thread exchanges messages with the other ranks.
/// Otherwise long work might exceed the deadline after which a silent rank counts as failed. If `work` threw an
/// exception on this rank, throws it when all ranks are done. `work` must not use the group. `what` names the work in
/// error texts. Calls `pulse`, if given, on the calling thread, at most about 50 times a second; see Trial::pulse().
/// Throws Error inside a tape, trace or dry run.
void run_while_polling(par::Group& group, std::string_view what, const std::function<void()>& work,
                       const std::function<void()>& pulse = {});

/// Sums the statistics of batch norm over all ranks, for --sync-bn. Install it as Context::sync. Before each step, set
/// `fraction` (this rank's share of the mini-batch) and `samples` (images in the mini-batch).
class GroupSync final : public SyncGroup {
public:
    explicit GroupSync(par::Group& group) : group_(group) {}
    void sum(std::span<double> values) override { group_.allreduce_sum(values, "batch statistics"); }

private:
    par::Group& group_;
};

/// Collective. Throws par::RanksDiffer on all ranks unless all have the same values of the options. Only --data and
/// --test-data (see TrainingRun::check_data()), --cache and --threads may differ, since the machines may differ.
void verify_same_options(par::Group& group, const Options& options);

} // namespace rg
