// The loop of a data-parallel training on images, and the test of a network. For other data, write the loop yourself,
// with Loader (data/loader.h), GradientSum (gradient_sum.h) and Optimizer (optimizer.h).
//
//     Trainer trainer(run, machine, net.parameters, Optimizer(net.parameters, {.momentum = 0.9}), feed, task, forward);
//     run.begin(...);
//     trainer.train(schedule, [&] { return test.score(); });
//     return run.end();
//
// Each rank holds the whole network. A worker takes m of the M images of a mini-batch, a share of f = m / M. The
// gradient and the loss of the mini-batch are sums over the workers of f times the worker's value. Batch norm's running
// mean is such a sum too. Its running variance also contains the differences between the workers' means
// (par/aggregate.h). All ranks then apply the same update. A rank is one worker, or with --workers several, one after
// another.
#pragma once

#include "ringgrad/core/accelerate.h"
#include "ringgrad/core/schedule.h"
#include "ringgrad/models/run/gradient_sum.h"
#include "ringgrad/models/run/image_feed.h"
#include "ringgrad/models/run/optimizer.h"
#include "ringgrad/models/run/task.h"
#include "ringgrad/models/run/training_run.h"

namespace rg {

/// Returns the outputs of the network for a batch. They may be traced, so the function may only use ops.
using Forward = std::function<std::vector<Tensor>(const data::Batch& batch, Mode mode)>;

struct Trainer {
    /// Collective. Creates the GradientSum, then calls TrainingRun::restore_parameters(). Keeps copies of the optimizer
    /// and of `forward`; all other arguments must outlive this. Throws Error for --sync-bn with several workers on a
    /// rank.
    Trainer(TrainingRun& run, const Machine& machine, Parameters& parameters, Optimizer optimizer, ImageFeed& feed,
            const Task& task, const Forward& forward);

    /// Makes and returns the plan for the largest batch, so that its memory is known before the first step.
    const Plan& plan();

    /// Seconds, summed over the epochs of one call of train(). `train` includes the tests within epochs
    /// (--validate-every), `test` has those after epochs.
    struct Seconds {
        double train = 0, test = 0;
    };
    /// Collective. Trains from the run's position until TrainingRun::goes_on() is false. Calls `test`, which must
    /// return the same on all ranks, after each complete epoch and as --validate-every asks. Calls save_model() and
    /// save_checkpoint() after each epoch, also after one that a stop, a rollback or --steps has cut short.
    Seconds train(const Schedule& schedule, const std::function<Score()>& test);

    TrainingRun& run;
    Parameters& parameters;
    const Optimizer optimizer;
    ImageFeed& feed;
    const Task& task;
    const Forward forward;
    const Tensor loss_of_all = Tensor::zeros({});
    /// Runs forward and backward. Returns outputs and loss, and leaves the gradients in the parameters' buffer. If
    /// there is a single worker in all, it also applies the update.
    Accelerated train_step;
    GradientSum gradient_sum;

private:
    void train_epoch(const Schedule& schedule, const std::function<Score()>& test);
    Score score(const std::function<Score()>& test);
    StepResult step(double lr);
    bool updates_in_step() const { return run.group().size() == 1 && run.group().most_workers() == 1; }
    std::vector<Tensor> forward_backward(std::span<const Tensor> inputs);
};

/// Tests a network on a set of images, such as the test set.
class Evaluation {
public:
    static constexpr int64_t kBatch = 250; // most images per call of the network

    /// `columns` are those of the task. Keeps copies of these and of `forward`; all other arguments must outlive this.
    Evaluation(par::Group& group, const Machine& machine, const data::ImageSet& set, std::vector<data::Column> columns,
               const data::Normalise& normalise, const Task& task, const Forward& forward);

    /// Collective. Returns the score on the whole set, on all ranks. The outputs for an image are the weighted sum of
    /// those for its views. Pixels of a view that lie outside of the image are mirrored at its edges. `pulse`: see
    /// Trial::pulse().
    Score score(const std::vector<data::WeightedView>& views = {{}}, const std::function<void()>& pulse = {});
    /// Returns the members of the report for the details of a score; see report.h.
    Json report(const Score& score) const;

    /// Makes the plans for all sizes of batches.
    void plan();

    Accelerated predict;

private:
    par::Group& group_;
    const data::ImageSet& set_;
    const Task& task_;
    ImageFeed feed_;
};

/// Collective. Makes the plans for the largest training batch and, unless --no-accelerate is given, for all sizes of
/// evaluation batches. So their memory is allocated before the first step. Returns the plan of a training step. On the
/// CPU, throws on all ranks if there is not enough memory; `advice` says how to need less.
const Plan& plan_ahead(Trainer& trainer, Evaluation& test, const std::string& advice);

} // namespace rg
