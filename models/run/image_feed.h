// Turns the mini-batches of a set into inputs of an Accelerated function (core/accelerate.h), for CPU and device.
//
// On the CPU the loader makes the images. For a device it only chooses images and their views (data/augment.h), and the
// augment op makes the batch on the device. There, the images are all those of the set, or if these take too much of
// the memory, those of the mini-batch, which the loader copies. Both give the same bits.
#pragma once

#include "data/loader.h"
#include "models/run/compute.h"

#include <vector>

namespace rg {

class ImageFeed {
public:
    /// Sets first_part, `parts` and own_parts in the options, as `compute` requires, and on a device `views` and
    /// `upload`. `set` and `compute` must outlive this. `columns` are further values of each image; a batch has them in
    /// Batch::columns.
    ImageFeed(const data::ImageSet& set, data::LoaderOptions options, const Compute& compute,
              std::vector<data::Column> columns = {});

    data::Loader loader;

    /// Returns the inputs for a batch: the images, or on a device Batch::images if they are copied by batch, indices
    /// and views; then the labels, those of label_weights, second_labels, second_weights and targets that are defined,
    /// and the columns.
    std::vector<Tensor> inputs(const data::Batch& batch) const;
    /// Returns inputs for n images, with arbitrary values. Use them to make plans before the first step.
    std::vector<Tensor> inputs(int64_t n) const;
    /// Returns the bytes of the batches that exist at the same time.
    int64_t bytes() const;
    /// Converts the result of inputs() to a batch. Call this inside the Accelerated function, since it runs ops. The
    /// batch has only size, x, labels with weights, targets and columns. Its x has the type Compute::activations(), f32
    /// or bf16.
    data::Batch batch(std::span<const Tensor> inputs) const;

    /// Returns a batch of a loader with LoaderOptions::views, but without random changes, with this view of all images.
    /// `view` is relative to the set's central window.
    data::Batch with_view(data::Batch batch, View view) const;

    /// Returns the number of mini-batches of an epoch. Throws Error if the set is too small for one.
    int64_t batches() const;

    /// Returns the size of the mini-batches, and the number of images that an epoch leaves out, for people.
    std::string text() const;
    /// Returns whether all images are on the device, and why, for people. Returns "" on a CPU.
    const std::string& placement() const { return placement_.text; }
    /// Returns the sizes of the parts that this rank's workers can get, the largest first. They include those of a
    /// partial mini-batch, even if partial ones are left out.
    std::vector<int64_t> sizes() const;

private:
    struct Placement {
        bool by_batch = false; // true: the loader copies the images of each mini-batch to the device
        std::string text = {};
    };
    static Placement placement_of(const data::ImageSet& set, const Compute& compute);
    ImageFeed(const data::ImageSet& set, data::LoaderOptions options, const Compute& compute,
              std::vector<data::Column> columns, Placement placement);

    const data::ImageSet& set_;
    const Compute& compute_;
    const int64_t batch_size_;
    const Placement placement_;
    // On a device, else undefined. resident_: all images of the set, unless they are copied by batch. statistics_: mean
    // and deviation by channel.
    const Tensor resident_, statistics_;
};

} // namespace rg
