// ImageSet: labelled images in host memory. The readers of data sets return such sets, and the loader (loader.h) can
// take one. This file also has functions that split sets.
//
// Pixels stay bytes until a mini-batch is made, so CIFAR-10 takes 184 MB instead of 737 MB. Copies and parts of a set
// share the pixels, which are in memory, or in a file that all processes of a node map (packed.h). Splits and orders
// depend only on their arguments, so that all ranks compute the same ones without communication.
#pragma once

#include "core/tensor.h"
#include "data/packed_file.h"

#include <map>
#include <memory>
#include <span>
#include <vector>

namespace rg::data {

/// Bytes of images, one after another. Copies share them.
class Pixels {
public:
    Pixels() = default;
    Pixels(std::vector<uint8_t> bytes);
    /// Takes the pixels of a packed set.
    explicit Pixels(std::shared_ptr<const PackedFile> file);

    int64_t size() const { return size_; }
    const uint8_t* data() const { return data_.get(); }
    operator std::span<const uint8_t>() const { return {data(), size_t(size_)}; }
    /// Returns the packed set that the pixels are in, or null if they are in memory.
    const PackedFile* file() const { return file_; }

private:
    std::shared_ptr<const uint8_t> data_; // shares the ownership of the vector or the file
    int64_t size_ = 0;
    const PackedFile* file_ = nullptr;
};

struct ImageSize {
    int64_t height = 0, width = 0;
    bool operator==(const ImageSize&) const = default;
};

struct ImageSet {
    int64_t count = 0, height = 0, width = 0, channels = 0;
    Pixels pixels = {};               // [n height width channels]; n is the count, unless there are rows
    std::vector<int32_t> labels = {}; // [count], each an index into classes
    std::vector<std::string> classes = {};
    std::vector<float> targets = {};            // [count k] or empty: k numbers for each image, such as an angle
    std::vector<std::string> target_names = {}; // [k]
    std::vector<std::string> names = {};        // [count] or empty: paths of the images below the folder of the set
    std::vector<int32_t> rows = {}; // [count] or empty: image i is image rows[i] of `pixels`; empty: image i
    ImageSize window = {};          // the part of each image that a network takes; {0, 0}: the whole image

    /// Returns the size of a network's inputs. Tests take the central window, and training an augmented one.
    ImageSize input_size() const { return window == ImageSize{} ? ImageSize{height, width} : window; }
    int64_t image_bytes() const { return height * width * channels; }
    int64_t row(int64_t i) const { return rows.empty() ? i : rows[size_t(i)]; }
    /// Returns the pixels of image i. Throws Error if they are in a packed set, and are damaged.
    std::span<const uint8_t> image(int64_t i) const;
    /// Returns the targets of image i, [k].
    std::span<const float> targets_of(int64_t i) const {
        const size_t k = target_names.size();
        return std::span(targets).subspan(size_t(i) * k, k);
    }
    ImageStats stats(int64_t i) const;
    /// Returns the path of image i below the folder of the set. Throws Error unless all images have names.
    const std::string& name(int64_t i) const;
    /// Tells the system that image i is about to be read, so that it loads the image from the disk.
    void will_need(int64_t i) const;
    /// Throws Error unless height, width and channels are positive, there is a class, the vectors match the extents,
    /// every label has a class, and all rows are in `pixels`. `name` is for the error text.
    void check(const std::string& name) const;
};

/// The rule by which a run holds out images of a class: those whose name has a hash below the limit of the class. It
/// depends neither on the order of the images nor on other classes. So a later run with more or fewer images, which
/// takes the same rule, holds out the same images again, and none that the earlier run has trained on.
struct HoldOut {
    std::string salt = {};                      // such as "test 0"; hashed with each name
    std::map<std::string, int64_t> limits = {}; // limit of each class, at least 0; hashes have 63 bits
    /// Returns this rule if it has limits. Otherwise, returns a new one for a purpose, such as "test", and a seed.
    HoldOut or_new(const std::string& purpose, int64_t seed) const {
        return limits.empty() ? HoldOut{cat(purpose, " ", seed)} : *this;
    }
    bool operator==(const HoldOut&) const = default;
};

struct TrainTest {
    ImageSet train, test;
    std::string source;                     // description for users: content and origin
    std::vector<std::string> warnings = {}; // for users, about files and folders
    HoldOut held_out = {};                  // the rule of the test images; no limits: they are a set of their own
    HoldOut validation = {};                // the rule of the validation images; no limits: there are none
    ImageSet reserved = {};                 // the real test set, if `test` is a validation set; else it has no images
    std::vector<std::string> left_out = {}; // files that --skip-other-images has left out, with the reason
};

/// The class of an image is the name of the outermost folder around it (layout.h), or of the innermost one.
enum class LabelFrom : uint8_t { top, parent };
/// The labels of images: a class, from labels.csv (image_folder.h) or folders; numbers or any number of classes, from
/// labels.csv; or none, so that all images have one class, wherever they lie.
enum class Labels : uint8_t { one_class, numbers, several_classes, none };

inline constexpr const char* kNoCache = "none"; // for LoadOptions::cache

/// How to load images. They become grey (1 channel) or RGB (3 channels), and are resized and cropped to height x width
/// if that is given (fit() in resize.h). If there is no test set, test_fraction is the fraction of each class held out
/// for testing, by the rule held_out, or a new one of the seed. With a fraction of 0, nothing is held out, and one of
/// the sets may be empty.
struct LoadOptions {
    int channels = 3;
    int64_t height = 0, width = 0; // 0: as stored
    double test_fraction = 0.2;
    int64_t seed = 0;
    HoldOut held_out = {};          // the rule of an earlier run; no limits: a new one
    bool skip_other_images = false; // false: an image that cannot be used is an error (image_folder.h)
    LabelFrom label_from = LabelFrom::top;
    Labels labels = Labels::one_class;
    bool unlabelled = false; // true: accepts images without a class folder or a target, for predictions
    int processes = 1; // processes of this machine that load the images at the same time, for the check of the memory
    // Folder for packed sets and for copies of remote data (cache.h); empty: user_cache(). With kNoCache, pixels are
    // in memory, and remote data are copied into user_cache().
    std::string cache = kNoCache;
};
/// Returns the sets with a new `source`, which consists of `what`, their sizes and `note`.
TrainTest with_source(TrainTest sets, const std::string& what, const std::string& note = "");

/// Returns the training images of `sets`, and the test set of `other` (or, if that is empty, its training images).
/// Gives equal class names equal labels. Throws Error if the test set has a class that the training images lack, or if
/// the sizes, the channels or the target names of the two differ.
TrainTest with_test_set(TrainTest sets, TrainTest other);

/// Returns a text: the number and extents of the images, and a checksum of pixels, labels, targets and target names.
/// Sets with equal texts train alike. Reads only the checksums of the images of a packed set, not their pixels. `more`
/// are checksums of further values of the images, such as masks.
std::string fingerprint(const ImageSet& set, std::span<const uint64_t> more = {});

/// Returns all pixels as a u8 tensor [count height width channels], in device memory if the context has a device.
/// If they do not fit there, use LoaderOptions::upload instead.
Tensor resident(const ImageSet& set);

/// Returns the number of images of each class.
std::vector<int64_t> count_per_label(const ImageSet& set);
/// Returns a table with the number of training and test images of each class, a line per class. `test` is the heading
/// of the last column, whose numbers are "-" if there are no such images.
std::string class_table(const TrainTest& sets, const std::string& test);
/// Returns class_table() if there are at most 20 classes. If there are more, or if in each set all classes have equally
/// many images, returns one line with the least, median and greatest number of images per class.
std::string class_counts(const TrainTest& sets, const std::string& test);

/// Indices into a set. Each list is in ascending order.
struct Split {
    std::vector<int64_t> selected, others;
    HoldOut rule; // the rule that has selected them
};
/// Selects images of every class by a rule. For a class without a limit, chooses one that selects
/// round(fraction * images of the class) images, but at least one and not all, or none if the class has a single
/// image. Images without names have their rows as names. Throws Error unless the fraction is above 0 and below 1.
Split split_fraction(const ImageSet& set, double fraction, HoldOut rule);

/// Returns the pixels of images first to first + n - 1, [n height width channels].
std::vector<uint8_t> copy_pixels(const ImageSet& set, int64_t first, int64_t n);

/// Returns the images with these indices, in the order of the indices. They share the pixels of the set. Throws Error
/// if an index is out of range.
ImageSet subset(const ImageSet& set, std::span<const int64_t> indices);
/// Splits a set with split_fraction(): the selected images are for testing, the others for training. `what` and `note`
/// describe the set, as in with_source(). With a fraction of 0, all are for training. Throws Error unless the fraction
/// is in [0, 1), and if it is positive but one of the two sets would be empty. Warns of classes with a single image.
TrainTest split_sets(const ImageSet& set, double test_fraction, const HoldOut& rule, const std::string& what,
                     const std::string& note = "");

struct Range {
    int64_t begin = 0, end = 0;
    int64_t size() const { return end - begin; }
    bool operator==(const Range&) const = default;
};
/// Returns the range of part i if n items are divided into `parts` parts in order. Each part has floor(n / parts)
/// items, and the first n % parts parts have one more. For i = parts, returns the empty range {n, n}. Throws Error
/// unless n >= 0, parts >= 1, and i is in [0, parts].
Range part_range(int64_t n, int parts, int i);

/// Returns the indices 0 to n - 1 in a random order, by the seed and the epoch. Throws Error unless 0 <= n < 2^32.
/// (Fisher-Yates shuffle, Durstenfeld, 1964.)
std::vector<int64_t> permutation(int64_t n, uint64_t seed, int64_t epoch);

/// One of the draws of an epoch: an image (or other sample), and how often the epoch had drawn it before.
struct Draw {
    int64_t index = 0, repeat = 0;
    /// Returns a number for streams of random numbers (core/rng.h), so that repeats differ. It is the index if the
    /// image is drawn for the first time.
    int64_t stream() const { return repeat << 32 | index; }
    bool operator==(const Draw&) const = default;
};
/// Returns as many draws as there are images, in a random order, by the seed and the epoch. Every class that occurs is
/// drawn equally often, up to a difference of one. Within a class, no image is drawn again before all others have been
/// drawn.
std::vector<Draw> balanced_draws(const ImageSet& set, uint64_t seed, int64_t epoch);

/// Returns a weight for each class that is inversely proportional to its number of images: count / (k * images of the
/// class), where k is the number of classes that occur. This is 'balanced' of scikit-learn. Other classes have 1.
std::vector<float> balanced_weights(const ImageSet& set);

} // namespace rg::data
