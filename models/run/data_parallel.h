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

/// Collective. Aggregates the running mean and variance of all batch-norm layers over the ranks; par/aggregate.h has
/// the formulas. `share` is the fraction of the mini-batch that this rank has computed. `extra_sums` are summed over
/// the ranks in the same message, unweighted.
void aggregate_state(par::Group& group, const Parameters& parameters, double share, std::span<double> extra_sums = {});

/// Collective. Runs `work` on another thread, in the caller's context, and blocks until all ranks are done. Meanwhile
/// the calling thread exchanges messages with the other ranks, since work on files or a network may take longer than
/// the deadline for a silent rank. Then throws what `work` threw on this rank. `work` must not use the group. `pulse`,
/// if given, is called on the calling thread about 50 times a second; see Trial::pulse().
void run_while_polling(par::Group& group, std::string_view what, const std::function<void()>& work,
                       const std::function<void()>& pulse = {});

/// Sums batch statistics over all ranks. Install it as Context::sync, and set `fraction` and `samples` before each
/// step.
class GroupSync final : public SyncGroup {
public:
    explicit GroupSync(par::Group& group) : group_(group) {}
    void sum(std::span<double> values) override { group_.allreduce_sum(values, "batch statistics"); }

private:
    par::Group& group_;
};

/// Collective. Throws Error on all ranks unless `parts` is the same on all. The message has the first part that
/// differs, and the two ranks that differ in it. `name` says in the message what is compared, and `hint` what to do.
void verify_same(par::Group& group, const std::string& name, const std::vector<std::string>& parts,
                 const std::string& hint);

/// Collective. Throws Error on all ranks unless all were started with the same options. Otherwise they would train
/// different networks without an error. --data and --test-data (see verify_same_data()), --cache and --threads may
/// differ, since the machines may differ.
void verify_same_options(par::Group& group, const Options& options);

/// Collective. Throws Error on all ranks unless all have the same images, labels and targets. The check is needed since
/// each rank reads the data by itself, perhaps on another machine. `test_set_name` is for the message.
void verify_same_data(par::Group& group, const data::TrainTest& data, const std::string& test_set_name);

/// Returns how many of the n rows of scores [n k] have their highest score at their label. Of equal scores, only the
/// first counts as the highest. Both tensors are in host memory.
int64_t count_correct(const Tensor& scores, const Tensor& labels);
/// Returns the mean cross-entropy of scores in host memory. Runs on the CPU, even if the context has a device.
double host_cross_entropy(const Tensor& scores, const Tensor& labels);

/// The class that a classifier assigns to an image.
struct Prediction {
    int32_t label; // class with the highest score
    float score;   // this highest score, after the softmax
};
/// Collects the predictions for a set, of which each rank makes those for its own images.
class Predictions {
public:
    explicit Predictions(int64_t images) : labels_and_scores_(size_t(2 * images)) {}
    /// Adds the predictions for the images first, first + 1, ... from their scores [n k] in host memory.
    void add(int64_t first, const Tensor& scores);
    /// Collective. Returns the predictions for all images, on every rank.
    std::vector<Prediction> gather(par::Group& group);

private:
    // Label and score of image 0, of image 1, and so on. Both are 0 for images of other ranks, so the sum over the
    // ranks has the predictions for all images.
    std::vector<double> labels_and_scores_;
};

/// The mean loss and the accuracy of a network on a whole set, and its prediction for each image.
struct Score {
    double loss = 0, accuracy = 0;
    std::vector<Prediction> predictions = {};
    std::vector<ExtraMetric> extras = {};
};
constexpr int64_t kEvaluationBatch = 250; // images per call of `forward`
/// Collective. Each rank evaluates its `range` of the set, and every rank gets the result. `forward` gets
/// kEvaluationBatch images, or fewer in its last call, and returns their scores.
Score evaluate(par::Group& group, data::Range range, const data::ImageSet& set, const data::Normalise& normalise,
               const std::function<Tensor(const Tensor& images)>& forward);

} // namespace rg
