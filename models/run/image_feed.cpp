// See image_feed.h.
#include "ringgrad/models/run/image_feed.h"

#include "ringgrad/core/ops.h"

namespace rg {
namespace {

data::LoaderOptions for_this_rank(const Machine& machine, data::LoaderOptions options) {
    const Workers& workers = machine.workers();
    options.rank = workers.first, options.ranks = workers.count, options.parts = workers.here;
    options.views = machine.device() != nullptr;
    return options;
}

} // namespace

ImageFeed::ImageFeed(const data::ImageSet& set, data::LoaderOptions options, const Machine& machine,
                     std::vector<data::Column> columns)
    : loader(set, for_this_rank(machine, options), std::move(columns)),
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
    inputs.insert(inputs.end(), batch.columns.begin(), batch.columns.end());
    return inputs;
}

data::Batch ImageFeed::batch(std::span<const Tensor> inputs) const {
    const data::Augmenter& augmenter = loader.augmenter();
    data::Batch batch;
    batch.size = inputs[0].extent(0);
    batch.x = machine_.device()
                  ? augment(resident_, inputs[0], inputs[1], statistics_,
                            {augmenter.height(), augmenter.width(), augmenter.reflect(), machine_.activations()})
                  : cast(inputs[0], machine_.activations());
    inputs = inputs.subspan(machine_.device() ? 2 : 1);
    if (inputs.empty()) return batch; // images alone, for a prediction
    batch.labels = inputs[0];
    if (!set_.targets.empty()) batch.targets = inputs[1];
    const std::span<const Tensor> columns = inputs.subspan(set_.targets.empty() ? 1 : 2);
    batch.columns.assign(columns.begin(), columns.end());
    return batch;
}

TrainingRun::Length ImageFeed::length(int64_t steps, int64_t epochs) const {
    RG_CHECK(loader.batches() > 0, "training: expected at least ", batch_size_,
             " training images for a mini-batch, got ", set_.count,
             "; make --batch-size smaller, or use --partial-batch keep");
    return {steps >= 0 ? steps : epochs * loader.batches(), loader.batches()};
}

data::Batch ImageFeed::largest_batch() const {
    const Workers& workers = machine_.workers();
    const int64_t n = data::part_range(std::min(batch_size_, set_.count), workers.count, workers.first).size();
    data::Batch batch;
    if (machine_.device())
        batch.indices = Tensor::on_host({n}, DType::i32), batch.views = Tensor::on_host({n, kViewNumbers}, DType::i32);
    else
        batch.x = Tensor::on_host({n, loader.augmenter().height(), loader.augmenter().width(), set_.channels});
    batch.labels = Tensor::on_host({n}, DType::i32);
    if (!set_.targets.empty()) batch.targets = Tensor::on_host({n, 1});
    for (const data::Column& column : loader.columns()) batch.columns.push_back(column.tensor(n));
    return batch;
}

} // namespace rg
