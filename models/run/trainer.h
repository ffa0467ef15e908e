// One step of data-parallel training, for any network and optimizer.
//
//     Trainer trainer(run, machine, net.parameters, sgdm(net.parameters, {.momentum = 0.9f}), feed,
//                     [&](const data::Batch& batch) -> ScoresAndLoss {
//                         const Tensor scores = net.forward(batch.x, Mode::train);
//                         return {scores, cross_entropy(scores, batch.labels)};
//                     });
//     run.begin(...);
//     while (run.goes_on()) {
//         trainer.begin_epoch();
//         while (run.epoch_goes_on()) {
//             const data::Batch batch = trainer.next_batch();
//             const StepResult result = trainer.step(batch, learning_rate);
//             run.step(result);
//         }
//         ...
//     }
//
// Each rank holds the whole network and takes its share f = m / M of the M images of a mini-batch. The gradient and the
// loss of the mini-batch are the sums over the ranks of f times their own. So is batch norm's running mean; its running
// variance also counts the distances between the ranks' means (par/aggregate.h). Every rank then makes the same update.
#pragma once

#include "core/accelerate.h"
#include "core/ops.h"
#include "models/run/gradient_sum.h"
#include "models/run/image_feed.h"
#include "models/run/training_run.h"

namespace rg {

/// The update of flat parameters. Per-step values are in a tensor, so that a replay picks up new ones.
struct Optimizer {
    OptimizerState state; // flat buffers
    Tensor rate_and_step; // f32: learning rate and, if the optimizer needs it, the number of the step from 1
    /// Changes nothing if first_non_finite() has found something.
    std::function<void(const Tensor& non_finite_at)> update;
};
/// `parameters` outlives the result. The rate in the options is not used.
Optimizer sgdm(const Parameters& parameters, const Sgdm& options);
Optimizer adam(const Parameters& parameters, const Adam& options);

struct ScoresAndLoss {
    Tensor scores, loss; // [n classes], a scalar
};

struct Trainer {
    /// The network's forward pass in training and its loss, as a traced function: ops only.
    using Forward = std::function<ScoresAndLoss(const data::Batch& batch)>;

    /// Puts the gradients where the ranks of a node share memory, and restores parameters and optimizer. The arguments
    /// outlive this, but for the optimizer and the function.
    Trainer(TrainingRun& run, const Machine& machine, Parameters& parameters, Optimizer optimizer, ImageFeed& feed,
            const Forward& forward);

    /// The plan of the largest batch, made ahead so that its memory is known before the first step.
    const Plan& plan() { return train_step.plan(feed.inputs(feed.blank()), true); }

    /// Collective. Begins the epoch at the run's position.
    void begin_epoch();
    /// This rank's share of the next mini-batch; may be empty.
    data::Batch next_batch();
    /// Collective. Forward, backward, sums over the ranks, update. Handles values that are not finite. A single
    /// rank waits for its device once.
    StepResult step(const data::Batch& batch, double lr);

    TrainingRun& run;
    Parameters& parameters;
    const Optimizer optimizer;
    const Tensor next_rate_and_step = Tensor::on_host({2});
    ImageFeed& feed;
    const Forward forward;
    const Tensor loss_of_all = Tensor::zeros({}), non_finite_at = Tensor::zeros({}, DType::i32);
    /// Returns scores and loss, leaves the gradients in their buffer. On one rank it also makes the update.
    Accelerated train_step;
    GradientSum gradient_sum;

private:
    std::vector<Tensor> forward_backward(std::span<const Tensor> inputs);
    void update(const Tensor& loss);
};

/// The test of a classifier after each epoch.
struct Evaluation {
    TrainingRun& run;
    const Machine& machine;
    const data::ImageSet& set;
    const data::Normalise normalise;
    std::function<Tensor(const Tensor& x)> forward; // gives the scores of images, as a traced function

    /// Collective. Returns loss, accuracy and predictions on the whole set, and reports the confusion matrix.
    Score score();

    const data::Range mine = machine.workers().share_of(set.count); // this rank's images
    Accelerated predict{[this](auto in, bool) { return std::vector{forward(cast(in[0], machine.activations()))}; },
                        machine.options().accelerate};
};

/// Collective. Makes the plans for all batches to come, so that their memory is known, and allocated, before the first
/// step; returns the plan of a training step. On the CPU, throws on all ranks if there is not enough memory; `advice`
/// says how to need less.
const Plan& plan_ahead(Trainer& trainer, Evaluation& test, const std::string& advice);

} // namespace rg
