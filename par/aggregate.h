// Combines values that each worker computed on its part of the mini-batch into the values for the whole mini-batch.
// Each rank is one worker, unless Group::set_workers() gives ranks several workers.
//
// Worker j has m_j of the M samples; its fraction is f_j = m_j / M. Gradients and losses are means over samples, so the
// total is the sum of f_j times the local value. Batch-norm statistics are a mean and a variance per channel. The
// combined ones, mean_c and variance_c, of a channel are:
//
//   mean_c = sum f_j mean_j        variance_c = sum f_j (variance_j + (mean_j - mean_c)^2 / m)
//
// The squared term accounts for the differences between the workers' means; without it the variance is too small. For
// the statistics of a mini-batch, m is 1. Running statistics contain those of the newest mini-batch with the weight m
// (PyTorch's momentum). If the means of two workers' parts of a mini-batch differ by d, their running means differ by
// m*d. The running variance needs m*d^2 where the square has (m*d)^2, so the formula divides by m. So for the
// same inputs of a layer that is used once per step, n workers have the running statistics of one that computes the
// whole mini-batch, save for the factor N / (N - 1) of the variance, in which N is the number of values of the worker's
// part. A worker without samples has the fraction 0. Its weighted values do not count, even if they are NaN (weigh()).
// Group adds the weighted values of all workers.
#pragma once

#include "par/group.h"


namespace rg::par {

/// The running statistics of one layer: two vectors of `channels` values. Does not own the memory.
struct RunningStats {
    float* mean = nullptr;
    float* variance = nullptr;
    int64_t channels = 0;
    double momentum = 1; // m in the formulas above
};
/// Combines the statistics of all layers by the formulas at the top of this file, in double. Also sums numbers such as
/// a step's loss, counts and flags over the workers, without weights. So these sums need no all-reduce of their own,
/// whose wait would cost time if ranks outnumber cores or span several nodes.
class RunningStatsSum {
public:
    /// Keeps the statistics, the fraction and the sums of this rank's next worker until finish().
    void add(std::span<const RunningStats> blocks, double fraction, std::span<const double> sums = {});
    /// Collective: two all-reduces, or two allgathers if any rank has several workers. Requires add() for each of
    /// this rank's workers. Writes the combined statistics to `blocks` and the sums over all workers to `sums`.
    void finish(Group& group, std::span<const RunningStats> blocks, std::span<double> sums = {});

private:
    struct Worker {
        std::vector<double> mean, variance, sums;
        double fraction;
    };
    std::vector<Worker> workers_;
};

} // namespace rg::par
