// Functions for a training on several ranks. With a single rank, the collective ones are no-ops or local calls.
#pragma once

#include "ringgrad/core/context.h"
#include "ringgrad/core/options.h"
#include "ringgrad/core/parameters.h"
#include "ringgrad/data/augment.h"
#include "ringgrad/models/run/progress.h"
#include "ringgrad/par/aggregate.h"

#include <functional>

namespace rg {

/// The running mean and variance of all batch-norm layers, and further sums, in one training step of all workers
/// (Group::set_workers()). par/aggregate.h has the formulas. With --sync-bn, the statistics are the same on all ranks
/// already.
class StepSums {
public:
    /// Both arguments must outlive this. Call it before the step's first forward pass.
    StepSums(par::Group& group, const Parameters& parameters);
    /// Call this after the backward pass of each of this rank's workers. `share` is the fraction of the mini-batch that
    /// the worker has computed. Before the next worker, the statistics return to those before the step.
    void add(double share, std::span<const double> sums);
    /// Collective. Sets the statistics to those of the whole mini-batch, and `sums` to the sums over all workers,
    /// without weights.
    void finish(std::span<double> sums);

private:
    std::vector<par::StateBlock> blocks() const;
    par::Group& group_;
    const Parameters& parameters_;
    Tensor before_, state_; // statistics before the step, if this rank has several workers; of a worker, in host memory
    int workers_left_;
    par::StateSum sum_;
};

/// Collective. Runs `work` on another thread, in the caller's context, and blocks until all ranks are done. (A single
/// rank without `pulse` runs it directly.) Meanwhile the calling thread exchanges messages with the other ranks.
/// Otherwise long work might exceed the deadline after which a silent rank counts as failed. Then throws what `work`
/// threw on this rank. `work` must not use the group. Calls `pulse`, if given, on the calling thread, at most about 50
/// times a second; see Trial::pulse(). Throws Error inside a tape, trace or dry run.
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

/// Collective. Throws Error on all ranks unless `parts` is the same on all. The message begins with `name`, shows the
/// first part that differs on two ranks, and ends with `hint`, which says what to do.
void verify_same(par::Group& group, const std::string& name, const std::vector<std::string>& parts,
                 const std::string& hint);

/// Collective. Throws Error on all ranks unless all have the same values of the options. Otherwise they might train
/// different networks without an error. --data and --test-data (see verify_same_data()), --cache and --threads may
/// differ, since the machines may differ.
void verify_same_options(par::Group& group, const Options& options);

/// Collective. Throws Error on all ranks unless the extents and CRC-32 of images, labels and targets are the same on
/// all. Ranks may read different files, perhaps on several machines. `test_set_name` is for the message.
void verify_same_data(par::Group& group, const data::TrainTest& data, const std::string& test_set_name);

/// Returns how many of n images have their highest score at their label. `scores` is [n classes], `labels` is [n]. Of
/// equal scores, only the first counts as the highest. Both tensors are in host memory.
int64_t count_correct(const Tensor& scores, const Tensor& labels);
/// Returns the mean cross-entropy of scores in host memory. Runs on the CPU, even if the context has a device.
double host_cross_entropy(const Tensor& scores, const Tensor& labels);

/// The class that a classifier assigns to an image.
struct Prediction {
    int32_t label; // class with the highest score
    float score;   // this highest score, after the softmax
};
/// Collects the predictions for a set of images. Each rank predicts for its own part of the set.
class Predictions {
public:
    explicit Predictions(int64_t images) : labels_and_scores_(size_t(2 * images)) {}
    /// Adds the predictions for n images, which are the images `first`, `first` + 1 and so on of the set. Takes their
    /// scores [n classes] in host memory.
    void add(int64_t first, const Tensor& scores);
    /// Collective. Returns the predictions for all images, on every rank. Call it once, after all calls of add().
    std::vector<Prediction> gather(par::Group& group);

private:
    // Label and score of image 0, of image 1, and so on. Before gather(), both are 0 for images of other ranks. So the
    // sum over the ranks has the predictions for all images.
    std::vector<double> labels_and_scores_;
};

/// The mean loss and the accuracy of a network on a whole set, and its prediction for each image.
struct Score {
    double loss = 0, accuracy = 0;
    std::vector<Prediction> predictions = {};
    std::vector<ExtraMetric> extras = {};
};
constexpr int64_t kEvaluationBatch = 250; // most images per call of `forward`
/// Collective. Each rank evaluates its `range` of the set, and every rank gets the result. `forward` gets
/// kEvaluationBatch images, or fewer in its last call, and returns their scores. With an empty range it is not called.
/// The scores of an image are the weighted sum of the scores of its views; pixels outside of the image mirror it.
Score evaluate(par::Group& group, data::Range range, const data::ImageSet& set, const data::Normalise& normalise,
               const std::function<Tensor(const Tensor& images)>& forward,
               const std::vector<data::WeightedView>& views = {{}});

} // namespace rg
