// Functions and classes for a training on several ranks. They also serve a single rank: then the collective functions
// send no messages.
#pragma once

#include "ringgrad/core/context.h"
#include "ringgrad/core/options.h"
#include "ringgrad/core/parameters.h"
#include "ringgrad/data/augment.h"
#include "ringgrad/models/run/progress.h"
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

/// Returns how many of n images have their highest score at their label. `scores` is [n classes], `labels` is [n]. Of
/// equal scores, only the first counts as the highest. Both tensors are in host memory.
int64_t count_correct(const Tensor& scores, const Tensor& labels);
/// Returns the mean cross-entropy of scores and labels in host memory. Runs on the CPU, even if the context has a
/// device.
double host_cross_entropy(const Tensor& scores, const Tensor& labels);

/// The class that a classifier assigns to an image.
struct Prediction {
    int32_t label; // class with the highest score
    float score;   // its probability, by the softmax of the scores
};
/// Collects the predictions for a set of images. Each rank predicts for its own part of the set.
class Predictions {
public:
    explicit Predictions(int64_t images) : labels_and_scores_(size_t(2 * images)) {}
    /// Adds the predictions for n images, which are the images `first`, `first` + 1 and so on of the set. Takes their
    /// scores before the softmax, [n classes], in host memory.
    void add(int64_t first, const Tensor& scores);
    /// Collective. Returns the predictions for all images, on every rank. Call it once, after all calls of add().
    std::vector<Prediction> gather(par::Group& group);

private:
    // Label and score of image 0, of image 1, and so on. Before gather(), both are 0 for images that this rank has not
    // added. So the sum over the ranks has the predictions for all images.
    std::vector<double> labels_and_scores_;
};

/// The mean loss and the accuracy (a fraction) of a network on a whole set, its prediction for each image, and metrics
/// that only one program has.
struct Score {
    double loss = 0, accuracy = 0;
    std::vector<Prediction> predictions = {};
    std::vector<ExtraMetric> extras = {};
};
constexpr int64_t kEvaluationBatch = 250; // most images per call of `forward`
/// Collective. Each rank evaluates its `range` of the set, and every rank gets the result for the whole set. `forward`
/// gets normalised images and returns their scores, before the softmax. It is called once for each view of a batch. A
/// batch has kEvaluationBatch images, the last one may have fewer. With an empty range, `forward` is not called. The
/// scores of an image are the weighted sum of the scores of its views. Pixels of a view that lie outside of the image
/// are mirrored at its edges.
Score evaluate(par::Group& group, data::Range range, const data::ImageSet& set, const data::Normalise& normalise,
               const std::function<Tensor(const Tensor& images)>& forward,
               const std::vector<data::WeightedView>& views = {{}});

} // namespace rg
