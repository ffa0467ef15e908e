// The queue of mini-batches. Workers claim mini-batches in order and put the results into a ring of slots.
//
// A worker claims mini-batch i only if i < next_ + depth. So the slot for the result is free, and memory is limited.
// The worker prepares the mini-batch without the lock, and stores it only if start() was not called meanwhile.
#include "ringgrad/data/loader.h"

#include <algorithm>
#include <system_error>

namespace rg::data {

Loader::Loader(const ImageSet& set, const LoaderOptions& options)
    : set_(set),
      options_(options),
      augmenter_(set.height, set.width, set.channels, options.augment, options.normalise) {
    set.check("loader");
    RG_CHECK(options.batch_size >= 1, "loader: expected a mini-batch of at least 1 sample, got ", options.batch_size);
    RG_CHECK(options.ranks >= 1 && options.rank >= 0 && options.rank <= options.ranks,
             "loader: expected a rank of 0 to ", options.ranks, ", got ", options.rank);
    RG_CHECK(options.threads >= 0 && options.depth >= 1, "loader: expected threads >= 0 and a depth >= 1, got ",
             options.threads, " and ", options.depth);
    batches_ = (set.count + (options.keep_partial ? options.batch_size - 1 : 0)) / options.batch_size;
    next_ = claimed_ = batches_; // has_next() is false until start()
    slots_.resize(size_t(options.depth));
    try {
        for (int i = 0; i < options.threads; ++i) workers_.emplace_back([this] { work(); });
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
    for (std::thread& worker : workers_) worker.join();
}

void Loader::start(int64_t epoch, int64_t first_batch) {
    RG_CHECK(first_batch >= 0 && first_batch <= batches_, "loader: expected a first batch of 0 to ", batches_, ", got ",
             first_batch, " (epoch ", epoch, ")");
    std::shared_ptr<const std::vector<int64_t>> order;
    if (options_.shuffle)
        order = std::make_shared<const std::vector<int64_t>>(permutation(set_.count, options_.seed, epoch));
    {
        std::lock_guard lock(mutex_);
        ++generation_;
        epoch_ = epoch;
        next_ = claimed_ = first_batch;
        order_ = std::move(order);
        for (Slot& slot : slots_) slot = {};
    }
    work_available_.notify_all();
}

Batch Loader::next() {
    RG_CHECK(has_next(), "loader: expected next() only while has_next(), got it after batch ", batches_);
    if (options_.threads == 0) {
        Batch batch = make(order_.get(), epoch_, next_);
        ++next_;
        return batch;
    }
    std::unique_lock lock(mutex_);
    Slot& slot = slots_[size_t(next_ % options_.depth)];
    batch_ready_.wait(lock, [&] { return slot.ready; });
    if (slot.error) std::rethrow_exception(slot.error);
    Batch batch = std::move(slot.batch);
    slot = {};
    ++next_;
    lock.unlock();
    work_available_.notify_one();
    return batch;
}

void Loader::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        work_available_.wait(lock,
                             [&] { return stopping_ || (claimed_ < batches_ && claimed_ < next_ + options_.depth); });
        if (stopping_) return;
        const int64_t index = claimed_++, epoch = epoch_;
        const uint64_t generation = generation_;
        const std::shared_ptr<const std::vector<int64_t>> order = order_;
        lock.unlock();
        Slot result{true, {}, nullptr};
        try {
            result.batch = make(order.get(), epoch, index);
        } catch (...) {
            result.error = std::current_exception();
        }
        lock.lock();
        if (generation != generation_) continue;
        slots_[size_t(index % options_.depth)] = std::move(result);
        batch_ready_.notify_one();
    }
}

Batch Loader::make(const std::vector<int64_t>* order, int64_t epoch, int64_t index) const {
    RG_CHECK(int64_t(set_.pixels.size()) == set_.count * set_.image_bytes(),
             "loader: the set was changed while the loader used it (epoch ", epoch, ", batch ", index, ")");
    const int64_t begin = index * options_.batch_size, size = std::min(options_.batch_size, set_.count - begin);
    const Range part = part_range(size, options_.ranks, options_.rank);
    const int64_t n = part.size(), h = augmenter_.height(), w = augmenter_.width(), c = set_.channels;
    Batch batch;
    batch.labels = Tensor::on_host({n}, DType::i32);
    if (!set_.targets.empty()) batch.targets = Tensor::on_host({n, 1});
    batch.epoch = epoch, batch.index = index, batch.global_size = size;
    if (options_.views)
        batch.indices = Tensor::on_host({n}, DType::i32), batch.views = Tensor::on_host({n, 3}, DType::i32);
    else
        batch.x = Tensor::on_host({n, h, w, c});
    for (int64_t i = 0; i < n; ++i) {
        const int64_t position = begin + part.begin + i, sample = order ? (*order)[size_t(position)] : position;
        batch.labels.data<int32_t>()[i] = set_.labels[size_t(sample)];
        if (!set_.targets.empty()) batch.targets.data<float>()[i] = set_.targets[size_t(sample)];
        if (!options_.views) {
            augmenter_.apply(set_.image(sample), options_.seed, epoch, sample, batch.x.data<float>() + i * h * w * c);
            continue;
        }
        const cpu::View view = augmenter_.view(options_.seed, epoch, sample);
        batch.indices.data<int32_t>()[i] = int32_t(sample);
        const std::array<int32_t, 3> numbers{view.flip, int32_t(view.y0), int32_t(view.x0)};
        std::copy_n(numbers.begin(), 3, batch.views.data<int32_t>() + 3 * i);
    }
    return batch;
}

} // namespace rg::data
