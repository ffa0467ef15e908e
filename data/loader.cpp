// The queue of parts of mini-batches (see LoaderOptions::parts). Background threads claim parts in order and put the
// results into a ring of slots.
//
// A thread claims part i only if i < next_ + depth, where next_ is the next part that the training loop gets. So the
// slot for the result is free, and memory is limited. The thread prepares the part without the lock, and stores it only
// if start() was not called meanwhile.
//
// With LoaderOptions::upload, the images of part i pass through slot i % most_parts() of pinned and of device memory. A
// thread claims part i only after next() has returned part i - depth. So the consumer has started all ops that read the
// part before in this slot, and has given the slot back.
#include "data/loader.h"

#include "core/checksum.h"
#include "core/context.h"
#include "core/device.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <system_error>

namespace rg::data {

Tensor Column::tensor(int64_t n) const {
    std::vector<int64_t> all{n};
    all.insert(all.end(), extents.extents().begin(), extents.extents().end());
    return Tensor::empty_on_host(Shape(all), type);
}

Column rows(const Tensor& values) {
    RG_CHECK(values.shape().rank() >= 1, "rows: expected values [count ...], got a scalar");
    const Tensor kept = values.to_host();
    const Shape extents(values.shape().extents().subspan(1));
    const size_t bytes = size_t(extents.numel() * size_of(values.dtype()));
    const std::string_view all(reinterpret_cast<const char*>(kept.bytes_data()), size_t(kept.bytes()));
    return {extents, values.dtype(), values.extent(0), checksum(all),
            [kept, bytes](const Sample& sample, std::byte* out) {
                std::memcpy(out, kept.bytes_data() + size_t(sample.index) * bytes, bytes);
            }};
}

Column computed(const Shape& extents, std::function<void(const Sample&, std::span<float>)> f) {
    const size_t numbers = size_t(extents.numel());
    return {extents, DType::f32, -1, 0, [f = std::move(f), numbers](const Sample& sample, std::byte* out) {
                f(sample, {reinterpret_cast<float*>(out), numbers});
            }};
}

/// Memory for the images of several parts: pinned memory where threads write them, and device memory to which they copy
/// them while ops run. The slots of the device memory are the chunks of a RoundTrip without host memory.
struct Loader::Upload {
    Upload(Device& to, int64_t slots, int64_t bytes)
        : device(to),
          slot_bytes(bytes),
          host(Tensor::empty_on_host({slots * bytes}, DType::u8)),
          memory(Tensor::empty({slots * bytes}, DType::u8)),
          pinned(to.pin(host.bytes_data(), size_t(host.bytes()))),
          writable(size_t(slots)) {
        std::vector<size_t> ends;
        for (int64_t i = 1; i <= slots; ++i) ends.push_back(size_t(i * bytes));
        trip = to.round_trip(nullptr, memory.bytes_data(), ends);
        // Ops that were started before may still use the memory that the device has reused.
        for (size_t i = 0; i < ends.size(); ++i) trip->download(i);
    }
    /// Copies the first bytes of a slot to the device. Blocks until ops have read the slot, and the copy is done.
    void copy(int64_t slot, int64_t bytes) {
        if (!writable[size_t(slot)]) trip->wait(size_t(slot)), writable[size_t(slot)] = 1;
        const int64_t begin = slot * slot_bytes;
        device.transfer(memory.bytes_data() + begin, host.bytes_data() + begin, size_t(bytes));
    }
    // The consumer's calls: it takes the slot of a part, and gives it back when it has started all ops that read it.
    void take(int64_t slot) { trip->upload(size_t(slot)), writable[size_t(slot)] = 0, taken = slot; }
    void give_back() {
        if (taken >= 0) trip->download(size_t(std::exchange(taken, -1)));
    }

    Device& device;
    const int64_t slot_bytes;
    const Tensor host, memory;
    const std::shared_ptr<void> pinned;
    std::unique_ptr<Device::RoundTrip> trip;
    std::vector<char> writable; // by slot: 1: no op reads it any more
    int64_t taken = -1;         // the consumer's slot, or -1
};

Loader::Loader(const ImageSet& set, const LoaderOptions& options, std::vector<Column> columns)
    : Loader(&set, options, std::move(columns)) {}

Loader::Loader(std::vector<Column> columns, const LoaderOptions& options)
    : Loader(nullptr, options, std::move(columns)) {}

Loader::Loader(const ImageSet* set, const LoaderOptions& options, std::vector<Column> columns)
    : set_(set),
      options_(options),
      augmenter_(set ? std::optional<Augmenter>(std::in_place, set->height, set->width, set->channels, options.augment,
                                                options.normalise, set->window)
                     : std::nullopt),
      columns_(std::move(columns)) {
    if (set) {
        set->check("loader"), count_ = set->count;
        for (size_t i = 0; i < set->targets.size(); ++i)
            RG_CHECK(std::isfinite(set->targets[i]), "loader: expected a finite target, got ", set->targets[i],
                     " (image ", i / set->target_names.size(), ")");
    }
    for (size_t i = 0; i < columns_.size(); ++i) {
        const Column& column = columns_[i];
        RG_CHECK(column.write && column.extents.rank() <= 3, "loader: expected columns with a function and at most 3 ",
                 "extents, got ", column.extents.str(), " (column ", i, ")");
        if (count_ < 0) count_ = column.count;
        RG_CHECK(column.count < 0 || column.count == count_, "loader: expected ", count_,
                 " samples in every column, got ", column.count, " (column ", i, ")");
    }
    RG_CHECK(count_ >= 0, "loader: expected images or a column with a number of samples, got neither; make one with "
                          "rows()");
    RG_CHECK(set || (!options.balanced && options.class_weights.empty() && !options.views),
             "loader: expected images with class weights, balanced classes or views, got columns alone");
    RG_CHECK(!options.balanced || options.shuffle != Shuffle::never,
             "loader: expected a random order with balanced classes, got that of the set; omit --shuffle never");
    RG_CHECK(options.class_weights.empty() || options.class_weights.size() == set->classes.size(), "loader: expected ",
             set ? set->classes.size() : 0, " class weights, one for each class, got ", options.class_weights.size());
    for (const float weight : options.class_weights)
        RG_CHECK(weight > 0 && std::isfinite(weight), "loader: expected class weights above 0, got ", weight);
    RG_CHECK(!set || !augmenter_->mixes() || columns_.empty(), "loader: expected no columns with mixup or cutmix, got ",
             columns_.size(), "; only images, labels and targets can be mixed");
    RG_CHECK(options.batch_size >= 1, "loader: expected a mini-batch of at least 1 sample, got ", options.batch_size);
    RG_CHECK(options.parts >= 1 && options.own_parts >= 1 && options.first_part >= 0 &&
                 options.first_part + options.own_parts <= options.parts + (options.own_parts == 1),
             "loader: expected parts of a mini-batch below ", options.parts, ", got ", options.own_parts, " from ",
             options.first_part);
    RG_CHECK(options.threads >= 0 && options.depth >= 1, "loader: expected threads >= 0 and a depth >= 1, got ",
             options.threads, " and ", options.depth);
    batches_ = count_ / options.batch_size + (options.keep_partial && count_ % options.batch_size != 0);
    next_ = claimed_ = end(); // nothing to do until start()
    slots_.resize(size_t(options.depth));
    if (options.upload) {
        RG_CHECK(context().device && options.views,
                 "loader: expected `upload` with a device and `views`, got it without");
        const int64_t whole = std::min(options.batch_size, count_),
                      most = part_range(whole, options.parts, options.first_part).size();
        upload_ = std::make_unique<Upload>(*context().device, most_parts(),
                                           std::max<int64_t>(1, most * images_each() * set->image_bytes()));
    }
    try {
        for (int i = 0; i < options.threads; ++i) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
        stop();
        fail("loader: cannot start ", options.threads, " threads: ", error.what());
    }
}

Loader::~Loader() { stop(); }

void Loader::stop() {
    {
        std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    work_available_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void Loader::start(int64_t epoch, int64_t first_batch) {
    const auto call = caller_.call("Loader");
    RG_CHECK(first_batch >= 0 && first_batch <= batches_, "loader: expected a first batch of 0 to ", batches_, ", got ",
             first_batch, " (epoch ", epoch, ")");
    RG_CHECK(batches_ > 0 || count_ == 0, "loader: expected at least ", options_.batch_size,
             " samples for a mini-batch, got ", count_, "; make batch_size smaller, or set keep_partial");
    started_ = true;
    auto order = std::make_shared<const EpochOrder>(order_of(epoch));
    {
        std::unique_lock lock(mutex_);
        if (upload_) { // no thread may write to slots that are given out again
            claimed_ = end();
            batch_ready_.wait(lock, [&] { return making_ == 0; });
            upload_->give_back();
        }
        ++generation_;
        epoch_ = epoch;
        next_ = claimed_ = first_batch * options_.own_parts;
        order_ = std::move(order);
        for (BatchSlot& slot : slots_) slot = {};
    }
    work_available_.notify_all();
}

Batch Loader::next() {
    const auto call = caller_.call("Loader");
    RG_CHECK(has_next(), "loader: expected next() only while has_next(), got it after batch ", batches_);
    if (upload_) upload_->give_back();
    if (options_.threads == 0) {
        Batch batch = make(*order_, epoch_, next_);
        if (upload_) upload_->take(next_ % most_parts());
        ++next_;
        return batch;
    }
    std::unique_lock lock(mutex_);
    BatchSlot& slot = slots_[size_t(next_ % options_.depth)];
    batch_ready_.wait(lock, [&] { return slot.ready; });
    if (slot.error) std::rethrow_exception(slot.error);
    Batch batch = std::move(slot.batch);
    slot = {};
    if (upload_) upload_->take(next_ % most_parts());
    ++next_;
    lock.unlock();
    work_available_.notify_one();
    return batch;
}

void Loader::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        work_available_.wait(lock,
                             [&] { return stopping_ || (claimed_ < end() && claimed_ < next_ + options_.depth); });
        if (stopping_) return;
        const int64_t index = claimed_++, epoch = epoch_;
        const uint64_t generation = generation_;
        const std::shared_ptr<const EpochOrder> order = order_;
        ++making_;
        lock.unlock();
        BatchSlot result{true, {}, nullptr};
        try {
            result.batch = make(*order, epoch, index);
        } catch (...) {
            result.error = std::current_exception();
        }
        lock.lock();
        --making_;
        if (generation == generation_) slots_[size_t(index % options_.depth)] = std::move(result);
        batch_ready_.notify_one();
    }
}

Draw Loader::EpochOrder::at(int64_t position) const {
    if (!draws.empty()) return draws[size_t(position)];
    return {permutation.empty() ? position : permutation[size_t(position)]};
}

Loader::EpochOrder Loader::order_of(int64_t epoch) const {
    if (options_.shuffle == Shuffle::never) return {};
    const int64_t drawn_for = options_.shuffle == Shuffle::once ? 0 : epoch;
    if (options_.balanced) return {{}, balanced_draws(*set_, options_.seed, drawn_for)};
    return {permutation(count_, options_.seed, drawn_for), {}};
}

std::vector<double> Loader::class_weights(const EpochOrder& order, Range whole) const {
    std::vector<double> weights(set_->classes.size(), 1.0);
    if (options_.class_weights.empty()) return weights;
    std::ranges::copy(options_.class_weights, weights.begin());
    double sum = 0;
    for (int64_t i = whole.begin; i < whole.end; ++i) sum += weights[size_t(set_->labels[size_t(order.at(i).index)])];
    for (double& weight : weights) weight *= double(whole.size()) / sum;
    return weights;
}

Batch Loader::allocate(int64_t n) const {
    const Augmenter& augmenter = *augmenter_;
    const int64_t k = std::ssize(set_->target_names);
    Batch batch;
    batch.labels = Tensor::empty_on_host({n}, DType::i32);
    if (k > 0) batch.targets = Tensor::empty_on_host({n, k});
    if (weighs_labels()) batch.label_weights = Tensor::empty_on_host({n});
    if (augmenter.mixes())
        batch.second_labels = Tensor::empty_on_host({n}, DType::i32), batch.second_weights = Tensor::empty_on_host({n});
    if (options_.views)
        batch.indices = augmenter.empty_indices(n), batch.views = augmenter.empty_views(n);
    else
        batch.x = Tensor::empty_on_host({n, augmenter.height(), augmenter.width(), set_->channels});
    if (upload_)
        batch.images = upload_->memory.slice(0, {n * images_each(), set_->height, set_->width, set_->channels});
    return batch;
}

void Loader::write_images(Batch& batch, const EpochOrder& order, Range part, Range whole) const {
    RG_CHECK(set_->count == count_ && std::ssize(set_->labels) == count_,
             "loader: the set was changed while the loader used it (epoch ", batch.epoch, ", batch ", batch.index, ")");
    const Augmenter& augmenter = *augmenter_;
    const int64_t n = part.size(), h = augmenter.height(), w = augmenter.width(), c = set_->channels;
    const int64_t k = std::ssize(set_->target_names);
    const bool mixes = augmenter.mixes();
    uint8_t* const uploaded = upload_ ? upload_->host.data<uint8_t>() + batch.images.key().offset : nullptr;
    std::vector<double> weights;
    if (weighs_labels()) weights = class_weights(order, whole);
    for (int64_t i = 0; i < n; ++i) {
        const int64_t position = part.begin + i;
        // Without mixing, only the first of the two is used.
        const std::array<Draw, 2> draws{order.at(position), order.at(whole.begin + whole.end - 1 - position)};
        std::array<View, 2> views;
        std::array<int32_t, 2> labels;
        for (size_t j = 0; j < size_t(images_each()); ++j) {
            views[j] = augmenter.view(options_.seed, batch.epoch, draws[j].stream());
            labels[j] = set_->labels[size_t(draws[j].index)];
        }
        const double share = mixes ? augmenter.second_share(views[0]) : 0;
        batch.labels.data<int32_t>()[i] = labels[0];
        if (weighs_labels()) batch.label_weights.data<float>()[i] = float((1 - share) * weights[size_t(labels[0])]);
        if (mixes) {
            batch.second_labels.data<int32_t>()[i] = labels[1];
            batch.second_weights.data<float>()[i] = float(share * weights[size_t(labels[1])]);
        }
        const auto targets = set_->targets_of(draws[0].index), second_targets = set_->targets_of(draws[1].index);
        for (size_t t = 0; t < size_t(k); ++t)
            batch.targets.data<float>()[size_t(i * k) + t] =
                mixes ? float((1 - share) * double(targets[t]) + share * double(second_targets[t])) : targets[t];
        if (!options_.views) {
            augmenter.apply(set_->image(draws[0].index), views[0], batch.x.data<float>() + i * h * w * c,
                            mixes ? set_->image(draws[1].index) : std::span<const uint8_t>(), views[1]);
            continue;
        }
        for (int j = 0; j < images_each(); ++j) {
            const int64_t entry = images_each() * i + j, index = draws[size_t(j)].index;
            batch.indices.data<int32_t>()[entry] = int32_t(uploaded ? entry : index);
            augmenter.store_view(batch.views, entry, views[size_t(j)]);
            if (uploaded) std::ranges::copy(set_->image(index), uploaded + entry * set_->image_bytes());
        }
    }
}

Range Loader::positions(int64_t part) const {
    const int64_t begin = part / options_.own_parts * options_.batch_size;
    const Range range =
        part_range(whole_batch_size(part), options_.parts, options_.first_part + int(part % options_.own_parts));
    return {begin + range.begin, begin + range.end};
}

int64_t Loader::whole_batch_size(int64_t part) const {
    return std::min(options_.batch_size, count_ - part / options_.own_parts * options_.batch_size);
}

Batch Loader::make(const EpochOrder& order, int64_t epoch, int64_t index) const {
    const Range part = positions(index);
    if (const int64_t ahead = index + options_.depth; set_ && ahead < end())
        for (int64_t i = positions(ahead).begin; i < positions(ahead).end; ++i) set_->will_need(order.at(i).index);
    Batch batch = set_ ? allocate(part.size()) : Batch();
    batch.epoch = epoch, batch.index = index / options_.own_parts, batch.first = part.begin;
    batch.size = part.size(), batch.global_size = whole_batch_size(index);
    const int64_t first = batch.index * options_.batch_size, slot = index % most_parts();
    if (upload_) batch.images = upload_->memory.slice(slot * upload_->slot_bytes, batch.images.shape());
    if (set_) write_images(batch, order, part, {first, first + batch.global_size});
    if (upload_) upload_->copy(slot, batch.images.bytes());
    for (const Column& column : columns_) {
        const Tensor values = column.tensor(part.size());
        const int64_t bytes = column.extents.numel() * size_of(column.type);
        for (int64_t i = 0; i < part.size(); ++i) {
            const Draw draw = order.at(part.begin + i);
            column.write({draw.index, epoch, options_.seed, draw.repeat}, values.bytes_data() + i * bytes);
        }
        batch.columns.push_back(values);
    }
    return batch;
}

} // namespace rg::data
