// Turns the mini-batches of a set into inputs of an Accelerated function, on the CPU and on a device.
//
// On the CPU the loader makes the images. A device holds all images of the set: the loader only chooses images and
// views, and the augment op makes the batch on the device.
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

    /// Returns the images of a batch as inputs.
    std::vector<Tensor> images(const data::Batch& batch) const;
    /// Returns the images, the labels and, if the set has any, the targets.
    std::vector<Tensor> inputs(const data::Batch& batch) const;

    /// Returns the batch for these inputs, inside the Accelerated function. x: f32 or bf16, see Machine::activations().
    data::Batch batch(std::span<const Tensor> inputs) const;

    /// Returns the position of this rank's first image of the batch, in the epoch's order.
    int64_t first_image(const data::Batch& b) const {
        return b.index * batch_size_ + machine_.workers().part_range(b.global_size).begin;
    }

    /// Returns the length of a training on this set: `steps`, or if that is -1, `epochs`. Throws Error if the set is
    /// smaller than a mini-batch.
    TrainingRun::Length length(int64_t steps, int64_t epochs) const;

    /// Returns this rank's share of the largest mini-batch, with arbitrary values, to make plans for it.
    data::Batch largest_batch() const;

private:
    const data::ImageSet& set_;
    const Machine& machine_;
    const int64_t batch_size_;
    const Tensor resident_, statistics_; // on a device: all images; mean and deviation
};

} // namespace rg
