// See image_feed.h.
#include "models/run/image_feed.h"

#include "core/ops.h"

namespace rg {
namespace {

data::LoaderOptions share_of(const Machine& machine, data::LoaderOptions options) {
    options.rank = machine.workers().place, options.ranks = machine.workers().count;
    options.views = machine.device() != nullptr;
    return options;
}

} // namespace

ImageFeed::ImageFeed(const data::ImageSet& set, data::LoaderOptions options, const Machine& machine)
    : loader(set, share_of(machine, options)),
      set_(set),
      machine_(machine),
      batch_size_(options.batch_size),
      resident_(machine.device() ? data::resident(set) : Tensor()),
      statistics_(machine.device() ? loader.augmenter().statistics() : Tensor()) {}

std::vector<Tensor> ImageFeed::images(const data::Batch& batch) const {
    return machine_.device() ? std::vector{batch.indices, batch.views} : std::vector{batch.x};
}

std::vector<Tensor> ImageFeed::inputs(const data::Batch& batch) const {
    std::vector<Tensor> inputs;
    for (const Tensor* t : {&batch.x, &batch.indices, &batch.views, &batch.labels, &batch.targets})
        if (t->defined()) inputs.push_back(*t);
    return inputs;
}

data::Batch ImageFeed::batch(std::span<const Tensor> inputs) const {
    const data::Augmenter& view = loader.augmenter();
    const size_t labels = machine_.device() ? 2 : 1;
    data::Batch batch;
    batch.x = machine_.device() ? augment(resident_, inputs[0], inputs[1], statistics_,
                                          {view.height(), view.width(), view.reflect(), machine_.activations()})
                                : cast(inputs[0], machine_.activations());
    if (inputs.size() > labels) batch.labels = inputs[labels];
    if (inputs.size() > labels + 1) batch.targets = inputs[labels + 1];
    return batch;
}

TrainingRun::Length ImageFeed::length(int64_t steps, int64_t epochs) const {
    RG_CHECK(loader.batches() > 0, "training: ", set_.count, " training images are less than a mini-batch of ",
             batch_size_, "; make --batch-size smaller, or keep a last batch that is smaller (--partial-batch keep)");
    return {steps >= 0 ? steps : epochs * loader.batches(), loader.batches()};
}

data::Batch ImageFeed::blank() const {
    const int64_t n = machine_.workers().share_of(std::min(batch_size_, set_.count)).size();
    data::Batch batch;
    if (machine_.device())
        batch.indices = Tensor::on_host({n}, DType::i32), batch.views = Tensor::on_host({n, 3}, DType::i32);
    else
        batch.x = Tensor::on_host({n, loader.augmenter().height(), loader.augmenter().width(), set_.channels});
    batch.labels = Tensor::on_host({n}, DType::i32);
    if (!set_.targets.empty()) batch.targets = Tensor::on_host({n, 1});
    return batch;
}

} // namespace rg
