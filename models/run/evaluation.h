// The test of a network on images.
#pragma once

#include "core/accelerate.h"
#include "models/run/image_feed.h"
#include "models/run/task.h"

namespace rg {

/// Tests a network on a set of images, such as the test set.
class Evaluation {
public:
    /// `batch_size` is that of the training, so a test needs no more memory: the workers get parts of the same sizes.
    /// `columns` are the further values of the images. Shares the memory of `training`, if given; see
    /// Accelerated::share_memory(). Keeps copies of `columns`, `normalise` and `forward`; all other arguments must
    /// outlive this.
    Evaluation(par::Group& group, const Compute& compute, const data::ImageSet& set, std::vector<data::Column> columns,
               const data::Normalise& normalise, int64_t batch_size, const Task& task, const Forward& forward,
               const Accelerated* training = nullptr);

    /// Collective. Returns the score on the whole set, on all ranks. The outputs for an image are the weighted sum of
    /// those for its views. Pixels of a view that lie outside of the image are mirrored at its edges. All ranks call
    /// `poll_stop` before each mini-batch. To end the test, it throws on all ranks.
    Score score(const std::vector<data::WeightedView>& views = {{}}, const std::function<void()>& poll_stop = {});
    /// Returns the members of the report that show this score; see report.h.
    Json report_members(const Score& score) const;
    /// Returns the tables that Task::details make of this score.
    std::vector<Detail::CsvTable> tables(const Score& score) const;

    /// Makes the plans for all sizes of batches, unless `predict` runs op by op.
    void plan();

    Accelerated predict;

private:
    par::Group& group_;
    const Compute& compute_;
    const data::ImageSet& set_;
    const data::Normalise normalise_;
    const Task& task_;
    ImageFeed feed_;
};

} // namespace rg
