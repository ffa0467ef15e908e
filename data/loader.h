// Loader: the queue of mini-batches that a training loop reads. Background threads prepare them in advance.
//
// An epoch goes through the whole set in one order, the same on every rank: a permutation by (seed, epoch), or the
// order of the set. Mini-batch b has the positions [b * B, (b + 1) * B) of that order, and a rank takes its
// part_range() of them. So the samples of a mini-batch, and their views, do not depend on the number of ranks or
// threads. A resumed run can start at any mini-batch of any epoch without computing the earlier ones.
//
// Samples are images with their labels, or columns of numbers, or both, combined by their index:
//
//     Loader images(set, {.batch_size = 128});
//     Loader numbers({rows(features), rows(classes)}, {.batch_size = 32});
#pragma once

#include "ringgrad/core/tensor.h"
#include "ringgrad/data/augment.h"

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

namespace rg::data {

/// The sample that a loader prepares.
struct Sample {
    int64_t index = 0, epoch = 0; // its position in the set
    uint64_t seed = 0;            // LoaderOptions::seed
    /// Returns random numbers that depend only on the three values, and not on the rank or the thread.
    Rng random() const { return Rng(seed, Purpose::sample, uint32_t(epoch), uint64_t(index)); }
};

/// A value of every sample. The loader gives the values of a mini-batch as a tensor [n extents...].
struct Column {
    Shape extents; // of the value of one sample: at most 3
    DType type = DType::f32;
    int64_t count = -1; // number of samples; -1: any number
    /// Writes the value of a sample. Several threads call this at the same time.
    std::function<void(const Sample& sample, std::byte* out)> write = {};
    /// Returns a tensor for the values of n samples, in host memory.
    Tensor tensor(int64_t n) const;
};
/// Returns a column of the rows of `values` [count extents...], features, targets or labels. The values must not change
/// while a loader uses them.
Column rows(const Tensor& values);
/// Returns a column of f32 values that f computes.
Column computed(const Shape& extents, std::function<void(const Sample& sample, std::span<float> out)> f);

/// One rank's part of a mini-batch. An empty part has 0 samples.
struct Batch {
    Tensor x;              // f32 [n h w c]; undefined with LoaderOptions::views
    Tensor indices, views; // only with views: i32 [n] and i32 [n 6], inputs of the augment op (core/ops.h)
    Tensor labels;         // i32 [n]
    int64_t epoch = 0, index = 0;
    int64_t global_size = 0; // number of samples on all ranks
    Tensor targets = {};     // f32 [n 1] if the set has targets
    std::vector<Tensor> columns = {}; // [n extents...], in the order of the loader's columns
};

/// The order of the samples: a new random one in every epoch, the same random one, or that of the set.
enum class Shuffle : uint8_t { epoch, once, never };

struct LoaderOptions {
    int64_t batch_size = 256;  // samples per mini-batch on all ranks together
    Shuffle shuffle = Shuffle::epoch;
    bool keep_partial = false; // keeps a last mini-batch that is smaller than the others
    uint64_t seed = 0;
    Augment augment = {};
    Normalise normalise = {};
    int rank = 0, ranks = 1; // divides mini-batches as in part_range()
    int threads = 1;         // 0: next() does the work itself
    int depth = 2;           // mini-batches prepared in advance
    bool views = false;      // returns indices and views for the augment op instead of images
};

class Loader {
public:
    /// Keeps a reference to `set`, which must not change. Throws Error if the options or the set are invalid, or if a
    /// column has another number of samples.
    Loader(const ImageSet& set, const LoaderOptions& options, std::vector<Column> columns = {});
    /// Makes batches of columns alone. At least one must have a number of samples, and all that have must agree.
    Loader(std::vector<Column> columns, const LoaderOptions& options);
    ~Loader();
    Loader(const Loader&) = delete;
    Loader& operator=(const Loader&) = delete;

    /// Requires images.
    const Augmenter& augmenter() const { return *augmenter_; }
    const std::vector<Column>& columns() const { return columns_; }

    /// Starts an epoch at one of its mini-batches, and discards mini-batches prepared before. May be called at any
    /// time.
    void start(int64_t epoch, int64_t first_batch = 0);
    /// Number of mini-batches per epoch.
    int64_t batches() const { return batches_; }
    /// Requires that an epoch has been started.
    bool has_next() const {
        RG_CHECK(started_, "loader: expected start() before the first mini-batch, got none; start an epoch");
        return next_ < batches_;
    }
    /// Returns the next mini-batch; blocks until it is ready. Requires has_next(). If preparing it failed, throws that
    /// exception, and throws it again in every later call until start().
    Batch next();

private:
    struct Slot {
        bool ready = false;
        Batch batch;
        std::exception_ptr error;
    };
    Loader(const ImageSet* set, const LoaderOptions& options, std::vector<Column> columns);
    void write_images(Batch& batch, std::span<const int64_t> samples) const;
    Batch make(const std::vector<int64_t>* order, int64_t epoch, int64_t index) const;
    void work();
    void stop();

    const ImageSet* const set_; // null: no images
    const LoaderOptions options_;
    const std::optional<Augmenter> augmenter_;
    const std::vector<Column> columns_;
    int64_t count_ = -1, batches_ = 0; // number of samples; mini-batches per epoch
    bool started_ = false;             // only the consumer uses this

    // The consumer is the thread that calls start() and next(). Only the consumer writes next_, so it may read next_
    // without the lock. The lock protects all other members below.
    std::mutex mutex_;
    std::condition_variable work_available_, batch_ready_;
    int64_t next_, claimed_; // next mini-batch for the consumer, next for a worker
    int64_t epoch_ = 0;
    uint64_t generation_ = 0;                           // number of start() calls; results of older ones are dropped
    std::shared_ptr<const std::vector<int64_t>> order_; // null: order of the set
    std::vector<Slot> slots_;                           // mini-batch i is in slot i % depth
    bool stopping_ = false;
    std::vector<std::thread> workers_;
};

} // namespace rg::data
