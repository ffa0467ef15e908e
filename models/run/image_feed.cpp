// See image_feed.h.
#include "models/run/image_feed.h"

#include "core/context.h"
#include "core/cpu/parallel.h"
#include "core/ops.h"
#include "models/run/memory.h"

#include <algorithm>

namespace rg {
namespace {

/// Members of a batch that ImageFeed::inputs() returns after the images, in this order, if they are defined.
constexpr Tensor data::Batch::*kOfImages[] = {&data::Batch::labels, &data::Batch::label_weights,
                                              &data::Batch::second_labels, &data::Batch::second_weights,
                                              &data::Batch::targets};

/// The images of a set are copied to a device once if they take at most this fraction of its free memory; else the
/// images of each mini-batch are. A copy during the step before costs little, but a network without memory fails. First
/// the training images and then those for tests take up to this fraction of what is free, so 9/16 remain.
constexpr double kResidentShare = 0.25;

data::LoaderOptions for_this_rank(const Compute& compute, data::LoaderOptions options, bool by_batch) {
    const Workers& workers = compute.workers();
    options.first_part = workers.first, options.parts = workers.count, options.own_parts = workers.own;
    options.views = options.views || compute.device(), options.upload = by_batch;
    return options;
}

} // namespace

ImageFeed::Placement ImageFeed::placement_of(const data::ImageSet& set, const Compute& compute) {
    if (!compute.device()) return {};
    const Workers& workers = compute.workers();
    const int64_t ranks = std::max<int64_t>(1, std::ssize(workers.ranks) / std::max(1, workers.gpus)); // on this device
    const int64_t bytes = set.count * set.image_bytes(),
                  limit = int64_t(kResidentShare * double(compute.device()->free_bytes())) / ranks;
    const std::string why = cat(gibibytes(limit), ", ", int(100 * kResidentShare), " % of its free memory",
                                ranks > 1 ? cat(" for ", ranks, " ranks") : "");
    if (bytes <= limit) return {false, cat("images: all ", gibibytes(bytes), " are on the GPU, at most ", why)};
    return {true, cat("images: each mini-batch is copied to the GPU ahead, since all take ", gibibytes(bytes),
                      ", more than ", why)};
}

ImageFeed::ImageFeed(const data::ImageSet& set, data::LoaderOptions options, const Compute& compute,
                     std::vector<data::Column> columns)
    : ImageFeed(set, std::move(options), compute, std::move(columns), placement_of(set, compute)) {}

ImageFeed::ImageFeed(const data::ImageSet& set, data::LoaderOptions options, const Compute& compute,
                     std::vector<data::Column> columns, Placement placement)
    : loader(set, for_this_rank(compute, options, placement.by_batch), std::move(columns)),
      set_(set),
      compute_(compute),
      batch_size_(options.batch_size),
      placement_(std::move(placement)),
      resident_(compute.device() && !placement_.by_batch ? data::resident(set) : Tensor()),
      statistics_(compute.device() ? loader.augmenter().statistics() : Tensor()) {}

std::vector<Tensor> ImageFeed::inputs(const data::Batch& batch) const {
    std::vector<Tensor> inputs;
    for (const Tensor* t : {&batch.x, &batch.images, &batch.indices, &batch.views})
        if (t->defined()) inputs.push_back(*t);
    for (const auto member : kOfImages)
        if ((batch.*member).defined()) inputs.push_back(batch.*member);
    inputs.insert(inputs.end(), batch.columns.begin(), batch.columns.end());
    return inputs;
}

data::Batch ImageFeed::with_view(data::Batch batch, View view) const {
    const View central = loader.augmenter().view(0, 0, 0); // no random changes
    view.y0 += central.y0, view.x0 += central.x0;
    const int64_t n = batch.size;
    const data::Augmenter& augmenter = loader.augmenter();
    if (compute_.device()) {
        batch.views = augmenter.empty_views(n); // a new tensor: the old views may still be on their way to the device
        for (int64_t i = 0; i < n; ++i) augmenter.store_view(batch.views, i, view);
        return batch;
    }
    const int64_t values = augmenter.height() * augmenter.width() * set_.channels;
    batch.x = Tensor::empty_on_host({n, augmenter.height(), augmenter.width(), set_.channels});
    parallel(n, [&](int64_t i) {
        augmenter.apply(set_.image(batch.indices.data<int32_t>()[i]), view, batch.x.data<float>() + i * values);
    });
    batch.indices = batch.views = Tensor();
    return batch;
}

data::Batch ImageFeed::batch(std::span<const Tensor> inputs) const {
    const data::Augmenter& augmenter = loader.augmenter();
    data::Batch batch;
    const Tensor images = placement_.by_batch ? inputs[0] : resident_;
    if (placement_.by_batch) inputs = inputs.subspan(1);
    batch.size = inputs[0].extent(0);
    batch.x = compute_.device()
                  ? augment(images, inputs[0], inputs[1], statistics_,
                            {augmenter.height(), augmenter.width(), augmenter.reflect(), compute_.activations()})
                  : cast(inputs[0], compute_.activations());
    inputs = inputs.subspan(compute_.device() ? 2 : 1);
    const data::Batch known = loader.allocate(0);
    for (const auto member : kOfImages)
        if ((known.*member).defined()) batch.*member = inputs[0], inputs = inputs.subspan(1);
    batch.columns.assign(inputs.begin(), inputs.end());
    return batch;
}

int64_t ImageFeed::batches() const {
    RG_CHECK(loader.batches() > 0, "training: expected at least ", batch_size_,
             " training images for a mini-batch, got ", set_.count,
             "; make --batch-size smaller, or use --partial-batch keep");
    return loader.batches();
}

std::string ImageFeed::text() const {
    const int64_t left_out = std::max<int64_t>(0, set_.count - loader.batches() * batch_size_);
    return cat("mini-batches of ", std::min(batch_size_, set_.count),
               left_out > 0 ? cat(", which leave out ", left_out, " of ", set_.count, " images in each epoch") : "");
}

std::vector<int64_t> ImageFeed::sizes() const {
    const Workers& workers = compute_.workers();
    std::vector<int64_t> sizes;
    for (const int64_t batch : {std::min(batch_size_, set_.count), set_.count % batch_size_})
        for (int i = 0; i < workers.own && batch > 0; ++i)
            if (const int64_t n =
                    data::part_range(batch, workers.count, std::min(workers.first + i, workers.count)).size();
                n > 0 && std::find(sizes.begin(), sizes.end(), n) == sizes.end())
                sizes.push_back(n);
    std::sort(sizes.rbegin(), sizes.rend());
    return sizes;
}

int64_t ImageFeed::bytes() const {
    const DryRun without_memory;
    const std::vector<int64_t> sizes = this->sizes();
    int64_t bytes = 0;
    for (const Tensor& input : inputs(sizes.empty() ? 0 : sizes.front())) bytes += loader.most_parts() * input.bytes();
    return bytes;
}

std::vector<Tensor> ImageFeed::inputs(int64_t n) const {
    data::Batch batch = loader.allocate(n);
    if (batch.views.defined() && !compute_.device()) { // with_view() makes the images
        const data::Augmenter& augmenter = loader.augmenter();
        batch.indices = batch.views = Tensor();
        batch.x = Tensor::empty_on_host({n, augmenter.height(), augmenter.width(), set_.channels});
    }
    for (const data::Column& column : loader.columns()) batch.columns.push_back(column.tensor(n));
    return inputs(batch);
}

} // namespace rg
