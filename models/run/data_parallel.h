// What a training loop on several ranks calls between its own lines: sums by share over the ranks, for a network's
// Parameters. With a single rank each of them is the identity.
#pragma once

#include "core/context.h"
#include "core/options.h"
#include "core/parameters.h"
#include "data/augment.h"
#include "par/aggregate.h"

#include <functional>

namespace rg {

/// Running mean and variance of all batch-norm layers over the ranks (par/aggregate.h has the formulas); `riders` are
/// summed over the ranks in the same message, unweighted.
void aggregate_state(par::Group& group, const Parameters& parameters, double share, std::span<double> riders = {});

/// Does this rank's work on a thread of its own, in the caller's context, while the ranks meet, until all are done:
/// work on files or a network may take longer than the deadline for a rank that is not heard of. Then throws what the
/// work has thrown. It may not use the group. `pulse`, if there is one, is called on this thread meanwhile, some fifty
/// times a second: for those outside of the group (Trial::pulse).
void while_meeting(par::Group& group, std::string_view what, const std::function<void()>& work,
                   const std::function<void()>& pulse = {});

/// Batch statistics over all ranks: install as Context::sync, and set share and samples before each step.
class GroupSync final : public SyncGroup {
public:
    explicit GroupSync(par::Group& group) : group_(group) {}
    void sum(std::span<double> values) override { group_.allreduce_sum(values, "batch statistics"); }

private:
    par::Group& group_;
};

/// Throws Error on all ranks unless all have the same parts. The text has the first that differs, and of which ranks.
/// `name` says what is compared, `hint` what to do.
void verify_same(par::Group& group, const std::string& name, const std::vector<std::string>& parts,
                 const std::string& hint);

/// Throws Error on all ranks unless all were started with the same options: they would train apart without a word. They
/// may differ in --data (see verify_same_data), --cache and --threads, since their machines may.
void verify_same_options(par::Group& group, const Options& options);

/// Throws Error on all ranks unless all have the same images, labels and targets: each reads for itself, perhaps on
/// another machine. `tested` is the name of the second set.
void verify_same_data(par::Group& group, const data::TrainTest& data, const std::string& tested);

/// How many rows of scores [n k] have their maximum at the label; the first of equal scores counts.
int64_t count_correct(const Tensor& scores, const Tensor& labels);
/// cross_entropy() of tensors in this machine's memory, whatever the context computes on.
double host_cross_entropy(const Tensor& scores, const Tensor& labels);

/// What a classifier sees in an image.
struct Prediction {
    int32_t label; // of the highest score
    float score;   // after the softmax
};
/// Those of a set, of which each rank sees a part.
class Predictions {
public:
    explicit Predictions(int64_t images) : seen_(size_t(2 * images)) {}
    /// From the scores [n k], in this machine's memory, of images first, first + 1, ...
    void add(int64_t first, const Tensor& scores);
    /// Of all images, on every rank. Collective.
    std::vector<Prediction> gather(par::Group& group);

private:
    // Label and score of each; a rank leaves those of the others zero, so that the sum over the ranks has them all.
    std::vector<double> seen_;
};

/// Mean loss and accuracy of a classifier on a whole set, and what it sees in each image; this rank takes the part
/// `mine` of it, and every rank has the result.
struct Score {
    double loss = 0, accuracy = 0;
    std::vector<Prediction> predictions = {};
};
/// `network` gives the scores of kEvaluationBatch images, or of fewer at the end.
constexpr int64_t kEvaluationBatch = 250;
Score evaluate(par::Group& group, data::Range mine, const data::ImageSet& set, const data::Normalise& normalise,
               const std::function<Tensor(const Tensor& images)>& network);

} // namespace rg
