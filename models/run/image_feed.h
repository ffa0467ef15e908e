// Turns the mini-batches of a set into inputs of an Accelerated function (core/accelerate.h), for CPU and device.
//
// On the CPU the loader makes the images. A device holds all images of the set: the loader only chooses images and
// their views (data/augment.h), and the augment op makes the batch on the device.
#pragma once

#include "ringgrad/data/loader.h"
#include "ringgrad/models/run/machine.h"
#include "ringgrad/models/run/training_run.h"

#include <vector>

namespace rg {

class ImageFeed {
public:
    /// Sets `rank`, `ranks`, `parts` and `views` in the options, as `machine` requires. `set` and `machine` must
    /// outlive this. `columns` are further values of each image; a batch has them in Batch::columns.
    ImageFeed(const data::ImageSet& set, data::LoaderOptions options, const Machine& machine,
              std::vector<data::Column> columns = {});

    data::Loader loader;

    /// Returns the inputs for the images of a batch: the images, or on a device their indices and views.
    std::vector<Tensor> images(const data::Batch& batch) const;
    /// Returns the inputs for the images, then the labels, the targets if the set has any, and the columns.
    std::vector<Tensor> inputs(const data::Batch& batch) const;

    /// Converts the result of inputs() to a batch. Call this inside the Accelerated function, since it runs ops. The
    /// batch has only size, x, labels, targets and columns. From the result of images(), it has only size and x. Its x
    /// has the type Machine::activations(), f32 or bf16.
    data::Batch batch(std::span<const Tensor> inputs) const;

    /// Returns the length of a training on this set: `steps` steps, or if `steps` is -1, `epochs` epochs. Throws Error
    /// if the set is too small for one mini-batch.
    TrainingRun::Length length(int64_t steps, int64_t epochs) const;

    /// Returns a batch with the shapes of the largest part of a mini-batch that one of this rank's workers computes.
    /// Its values are arbitrary. Use it to make plans before the first step.
    data::Batch largest_batch() const;

private:
    const data::ImageSet& set_;
    const Machine& machine_;
    const int64_t batch_size_;
    // On a device, else undefined. resident_: all images of the set. statistics_: their mean and deviation by channel.
    const Tensor resident_, statistics_;
};

} // namespace rg
