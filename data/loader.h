// The queue of mini-batches: what a training loop iterates over, prepared ahead by background threads.
//
// An epoch is one order of the whole set, the same on every rank: a permutation by (seed, epoch), or file order. Batch
// b is positions [b * B, (b + 1) * B) of it, and a rank takes its share_of() that batch. So which samples are trained
// on together, and how each of them looks, depends neither on the number of ranks nor on threads, and any batch of any
// epoch can be made without those before it: that is all that a resume needs.
#pragma once

#include "core/tensor.h"
#include "data/augment.h"

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

namespace rg::data {

/// One rank's share of a mini-batch. Empty shares have 0 samples.
struct Batch {
    Tensor x;              // f32 [n h w c]; not with LoaderOptions::views
    Tensor indices, views; // only with it: i32 [n], i32 [n 3], as the augment op (core/ops.h) takes them
    Tensor labels;         // i32 [n]
    int64_t epoch = 0, index = 0;
    int64_t global_size = 0; // samples of all ranks
    Tensor targets = {};     // f32 [n 1], if the set has any
};

struct LoaderOptions {
    int64_t batch_size = 256;  // of all ranks together
    bool shuffle = true;       // a new order every epoch
    bool keep_partial = false; // a last batch that is smaller
    uint64_t seed = 0;
    Augment augment;
    Normalise normalise;
    int rank = 0, ranks = 1; // of the batches' parts, as share_of() has them
    int threads = 1;         // 0: next() does the work
    int depth = 2;           // batches ahead
    bool views = false;      // say which images and how they are seen, for the augment op, instead of making them
};

class Loader {
public:
    /// Keeps a reference to `set`, which must not change. Errors: options or a set that cannot be.
    Loader(const ImageSet& set, const LoaderOptions& options);
    ~Loader();
    Loader(const Loader&) = delete;
    Loader& operator=(const Loader&) = delete;

    const Augmenter& augmenter() const { return augmenter_; }

    /// Begins an epoch at one of its batches; what was prepared before is dropped. Allowed at any time.
    void start(int64_t epoch, int64_t first_batch = 0);
    /// Of an epoch.
    int64_t batches() const { return batches_; }
    bool has_next() const { return next_ < batches_; }
    /// The next batch, waiting if need be. Requires has_next(). Throws what went wrong while it was prepared; so does
    /// every further call, until start().
    Batch next();

private:
    struct Slot {
        bool ready = false;
        Batch batch;
        std::exception_ptr error;
    };
    Batch make(const std::vector<int64_t>* order, int64_t epoch, int64_t index) const;
    void work();
    void stop();

    const ImageSet& set_;
    const LoaderOptions options_;
    const Augmenter augmenter_;
    int64_t batches_ = 0;

    // The consumer alone touches next_ outside of the lock; everything else below is under it.
    std::mutex mutex_;
    std::condition_variable to_make_, made_;
    int64_t next_, claimed_; // batches taken out, batches that workers have begun
    int64_t epoch_ = 0;
    uint64_t generation_ = 0;                           // counts start(): work begun before it is thrown away
    std::shared_ptr<const std::vector<int64_t>> order_; // null: file order
    std::vector<Slot> slots_;                           // batch i in slot i % depth
    bool stopping_ = false;
    std::vector<std::thread> workers_;
};

} // namespace rg::data
