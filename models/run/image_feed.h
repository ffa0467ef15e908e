// The mini-batches of a set as inputs of an Accelerated function, on the CPU and on a device alike.
//
// On the CPU the loader makes the images. A device holds all images of the set: the loader only chooses images and
// views, and the augment op makes them on the device.
#pragma once

#include "data/loader.h"
#include "models/run/machine.h"
#include "models/run/training_run.h"

#include <vector>

namespace rg {

class ImageFeed {
public:
    /// Sets rank, ranks and views of the options. `set` and `machine` outlive this.
    ImageFeed(const data::ImageSet& set, data::LoaderOptions options, const Machine& machine);

    data::Loader loader;

    /// The images of a batch as inputs; with labels and, if the set has any, targets behind them.
    std::vector<Tensor> images(const data::Batch& batch) const;
    std::vector<Tensor> inputs(const data::Batch& batch) const;

    /// Inside the function: the batch that `inputs` stand for. x: f32 or bf16, as the machine computes.
    data::Batch batch(std::span<const Tensor> inputs) const;

    /// The number of images before this rank's share of the batch, in the epoch's order.
    int64_t first(const data::Batch& b) const {
        return b.index * batch_size_ + machine_.workers().share_of(b.global_size).begin;
    }

    /// The length of a training on this set: `steps`, or if that is -1 the epochs. Throws Error if the set is smaller
    /// than a mini-batch.
    TrainingRun::Length length(int64_t steps, int64_t epochs) const;

    /// This rank's share of the largest mini-batch, with arbitrary contents, to plan with.
    data::Batch blank() const;

private:
    const data::ImageSet& set_;
    const Machine& machine_;
    const int64_t batch_size_;
    const Tensor resident_, statistics_; // on a device: all images; mean and deviation
};

} // namespace rg
