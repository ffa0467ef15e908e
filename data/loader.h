// Loader: the queue of mini-batches that a training loop reads. By default, a background thread prepares them.
//
// An epoch goes through the set in one order, the same on every rank: a permutation by (seed, epoch), one by the seed
// for all epochs, or the order of the set (see Shuffle). With B samples per mini-batch, mini-batch b has positions
// [b * B, (b + 1) * B) of that order, and each rank takes its part (part_range() in dataset.h). So the samples of a
// mini-batch, and their random views (augment.h), do not depend on the number of ranks or threads. If the last samples
// do not fill a mini-batch, an epoch leaves them out, or with keep_partial makes a smaller one. A resumed run can start
// at any mini-batch of any epoch without computing the earlier ones.
//
// Samples are images with their labels, or columns of numbers, or both, combined by their index:
//
//     Loader images(set, {.batch_size = 128});
//     Loader numbers({rows(features), rows(classes)}, {.batch_size = 32});
//
// With LoaderOptions::upload, the thread that prepares a mini-batch also copies its images to the device, while ops of
// the mini-batches before run there.
//
// One thread at a time may use a Loader: start() and next() throw Error during such a call of another thread.
#pragma once

#include "core/one_caller.h"
#include "core/tensor.h"
#include "data/augment.h"

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

namespace rg::data {

/// Tells a Column which sample to write, and for which epoch.
struct Sample {
    int64_t index = 0, epoch = 0; // index: the sample's position in the set
    uint64_t seed = 0;            // LoaderOptions::seed
    int64_t repeat = 0;           // how often the epoch had this sample before; 0 unless LoaderOptions::balanced
    /// Returns a generator whose numbers depend only on these four values, and not on the rank or the thread.
    Rng random() const { return Rng(seed, Purpose::sample, uint32_t(epoch), uint64_t(Draw{index, repeat}.stream())); }
};

/// One value, a number or an array, of every sample. A mini-batch of n samples gives a tensor [n extents...].
struct Column {
    Shape extents; // shape of one sample's value: up to 3 extents
    DType type = DType::f32;
    int64_t count = -1;    // number of samples; -1: any number
    uint64_t checksum = 0; // checksum of all values; 0: unknown
    /// Writes the value of a sample. Several threads may call this at the same time.
    std::function<void(const Sample& sample, std::byte* out)> write = {};
    /// Returns a tensor for the values of n samples, in host memory.
    Tensor tensor(int64_t n) const;
};
/// Returns a column whose value of sample i is row i of `values` [count extents...], such as features, targets or
/// labels. The values must not change while a loader uses them.
Column rows(const Tensor& values);
/// Returns a column of f32 values that f computes.
Column computed(const Shape& extents, std::function<void(const Sample& sample, std::span<float> out)> f);

/// A part of a mini-batch (see LoaderOptions::parts): n samples, possibly 0, in host memory. Images have c channels,
/// and the height h and width w of ImageSet::input_size().
struct Batch {
    Tensor x;              // f32 [n h w c]; undefined without images, and with LoaderOptions::views
    Tensor indices, views; // only with LoaderOptions::views: i32 [n ...], inputs of the augment op (core/ops/augment.h)
    // u8 [n height width c], or [2 n ...] if images are mixed: the images that `indices` select, in device memory. Only
    // with LoaderOptions::upload, and only for ops that are started before the next call of the loader.
    Tensor images;
    Tensor labels; // i32 [n]; undefined without images
    int64_t epoch = 0, index = 0;
    int64_t size = 0, global_size = 0; // number of samples in this part, and in the whole mini-batch
    int64_t first = 0;                 // position of this part's first sample in the epoch's order
    Tensor targets = {};               // f32 [n k], mixed like the images; undefined if the set has no targets
    // label_weights, second_weights: f32 [n], weights of each image's two labels in a mean over the whole mini-batch.
    // second_labels: i32 [n]. Undefined unless images are mixed; label_weights is also defined with class weights.
    Tensor label_weights = {}, second_labels = {}, second_weights = {};
    std::vector<Tensor> columns = {}; // [n extents...], in the order of the loader's columns
};

/// The order of the samples: a new random one in every epoch, one random order for all epochs, or that of the set.
enum class Shuffle : uint8_t { epoch, once, never };

struct LoaderOptions {
    int64_t batch_size = 256; // samples per mini-batch on all ranks together
    Shuffle shuffle = Shuffle::epoch;
    bool keep_partial = false; // keeps a last mini-batch that is smaller than the others
    uint64_t seed = 0;         // the same on all ranks
    bool balanced = false;     // draws images so that classes are equally frequent: balanced_draws() in dataset.h
    // Weights of the classes, all positive; empty: 1. They are divided by the mean weight of the labels in each whole
    // mini-batch, so that the weighted mean over its images is that of PyTorch's cross_entropy(weight=...).
    std::vector<float> class_weights = {};
    Augment augment = {};
    Normalise normalise = {};
    // Each mini-batch has `parts` parts (part_range()). next() returns parts first_part to first_part + own_parts - 1,
    // one per call. With MPI, set first_part and `parts` to the rank and the size of the group; otherwise every rank
    // gets whole mini-batches. A rank that takes no samples sets first_part = parts, and gets empty parts.
    int first_part = 0, parts = 1, own_parts = 1;
    int threads = 1;    // number of background threads; 0: next() does the work itself
    int depth = 2;      // largest number of parts that background threads prepare ahead
    bool views = false; // returns indices and views for the augment op instead of images
    // With `views`: also copies the images to the context's device, for a set that does not fit into its memory.
    // Indices then select from Batch::images, not from the set.
    bool upload = false;
};

class Loader {
public:
    /// Keeps a reference to `set`, which must outlive the loader and not change. Throws Error if the options, the set
    /// or a column are invalid, if a column has another number of samples, or if a thread cannot be started. With
    /// `upload`, allocates memory for most_parts() parts on the device and on the host.
    Loader(const ImageSet& set, const LoaderOptions& options, std::vector<Column> columns = {});
    /// Makes batches of columns alone. At least one must give its number of samples, and all that do must agree.
    Loader(std::vector<Column> columns, const LoaderOptions& options);
    ~Loader();
    Loader(const Loader&) = delete;
    Loader& operator=(const Loader&) = delete;

    /// Returns the augmenter of the images. Requires images.
    const Augmenter& augmenter() const { return *augmenter_; }
    const std::vector<Column>& columns() const { return columns_; }
    /// Returns a batch with the tensors of n images, which have arbitrary values. Requires images.
    Batch allocate(int64_t n) const;
    /// Largest number of parts in memory: those that background threads prepare ahead, and that of the consumer.
    int most_parts() const { return options_.depth + 1; }
    /// Returns true if batches have label_weights.
    bool weighs_labels() const { return !options_.class_weights.empty() || (augmenter_ && augmenter_->mixes()); }

    /// Starts an epoch at mini-batch `first_batch`, and discards the mini-batches that were prepared before. May be
    /// called in the middle of an epoch. Throws Error if `first_batch` is not in [0, batches()], or if there are
    /// samples, but too few for one mini-batch.
    void start(int64_t epoch, int64_t first_batch = 0);
    /// Number of mini-batches per epoch.
    int64_t batches() const { return batches_; }
    /// Returns false after the last part of the last mini-batch. Throws Error if no epoch has been started.
    bool has_next() const {
        RG_CHECK(started_, "loader: expected start() before the first mini-batch, got none; start an epoch");
        return next_ < end();
    }
    /// Returns this rank's samples of the next mini-batch, or with own_parts > 1, one of its parts per call. Blocks
    /// until they are ready. Requires has_next(). If preparing them failed, throws that exception. Later calls throw it
    /// again until start(), or with threads = 0 try again.
    Batch next();

private:
    struct BatchSlot {
        bool ready = false;
        Batch batch;
        std::exception_ptr error;
    };
    Loader(const ImageSet* set, const LoaderOptions& options, std::vector<Column> columns);
    /// The order of an epoch's samples. If both vectors are empty, it is the order of the set.
    struct EpochOrder {
        std::vector<int64_t> permutation;
        std::vector<Draw> draws;
        Draw at(int64_t position) const;
    };
    EpochOrder order_of(int64_t epoch) const;
    void write_images(Batch& batch, const EpochOrder& order, Range part, Range whole) const;
    /// Returns the weight of each class, for the mini-batch that has the positions `whole`.
    std::vector<double> class_weights(const EpochOrder& order, Range whole) const;
    /// Return the positions of a part in the epoch's order, and the size of its whole mini-batch. The parts of this
    /// loader are numbered: part b * own_parts + i is part first_part + i of mini-batch b.
    Range positions(int64_t part) const;
    int64_t whole_batch_size(int64_t part) const;
    Batch make(const EpochOrder& order, int64_t epoch, int64_t part) const;
    int images_each() const { return augmenter_->mixes() ? 2 : 1; } // images per sample
    int64_t end() const { return batches_ * options_.own_parts; }
    void work();
    void stop();

    const ImageSet* const set_; // null: no images
    const LoaderOptions options_;
    const std::optional<Augmenter> augmenter_;
    const std::vector<Column> columns_;
    int64_t count_ = -1, batches_ = 0; // number of samples; mini-batches per epoch
    bool started_ = false;             // only the consumer (see below) uses this
    OneCaller caller_;

    // The consumer is the thread that calls start() and next(). If there are background threads, the lock protects
    // the members below, except threads_. But only the consumer writes next_, so it may read next_ without the lock.
    std::mutex mutex_;
    std::condition_variable work_available_, batch_ready_;
    int64_t next_, claimed_; // number of the next part for the consumer, and for a background thread; see positions()
    int64_t epoch_ = 0;
    uint64_t generation_ = 0; // number of epochs started; results of older ones are dropped
    std::shared_ptr<const EpochOrder> order_;
    std::vector<BatchSlot> slots_; // part i is in slot i % depth
    bool stopping_ = false;
    int making_ = 0; // number of background threads that are preparing a part
    struct Upload;
    std::unique_ptr<Upload> upload_; // null without LoaderOptions::upload
    std::vector<std::thread> threads_;
};

} // namespace rg::data
