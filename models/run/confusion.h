// The confusion matrix of a classifier: how often images of each class were assigned to each class. And tables of
// precision, recall and F1 of each class, or of each of several labels.
//
// Only pairs that occur are stored, so many classes need little memory if most pairs never occur. Tables have columns
// for at most kMostShown classes.
#pragma once

#include "models/run/model_file.h"

#include <map>

namespace rg {

/// The rows of the matrix are true classes, its columns are predicted classes. Keeps a reference to the class names,
/// which must outlive this.
class Confusion {
public:
    explicit Confusion(const std::vector<std::string>& classes) : classes_(classes), sums_(classes.size()) {}
    /// Counts all images of a set. `numbers` are [count 2]: the predicted class, and the rank_of() the true one. Throws
    /// Error unless there are two for each image, or if a predicted class is none of the set.
    Confusion(const data::ImageSet& set, std::span<const double> numbers);
    void add(int32_t truth, size_t predicted, size_t rank);
    bool empty() const { return total_ == 0; }

    static constexpr size_t kMostShown = 100;
    /// Returns the classes that tables show, in ascending order. These are all classes if there are at most kMostShown.
    /// Else it leaves out those that never occur, and takes the kMostShown others with the most mistakes. A mistake
    /// counts for its true class and for its predicted class. Of classes with equally many mistakes, the first ones are
    /// taken.
    std::vector<size_t> shown() const;
    bool shows_all() const { return classes_.size() <= kMostShown; }

    int64_t count(size_t truth, size_t predicted) const;
    int64_t images_of(size_t truth) const { return sums_[truth].images; }
    int64_t predicted_as(size_t label) const { return sums_[label].predicted; }
    int64_t correct() const { return correct_; }
    int64_t total() const { return total_; }

    /// Returns the accuracy and the matrix of the shown classes as text. If no image was counted, returns a line that
    /// says so. Each row ends with its number of images and its accuracy. Below each column are its number of
    /// predictions and the percentage of them that is correct. `images` is the number of all images, including those
    /// without a known label.
    std::string text(size_t images) const;
    /// Returns CSV with a heading and one line per true class, including classes that are not shown. A line has the
    /// name, a count per shown class (as predicted class), the number of images, and (if there are any) the accuracy.
    std::string csv() const;
    /// Returns CSV with a heading and one line per class: its name, number of images, precision, recall and F1, and if
    /// there are more than kTop classes, the fraction of its images whose class is among the kTop with the highest
    /// scores. A fraction of nothing is empty, such as the precision of a class that is never predicted.
    std::string csv_of_classes() const;
    static constexpr size_t kTop = 5;

private:
    struct Sums {
        int64_t images = 0, predicted = 0, correct = 0, top = 0;
    };
    const std::vector<std::string>& classes_;
    std::map<std::pair<size_t, size_t>, int64_t> counts_; // by true and predicted class
    std::vector<Sums> sums_;                              // by class
    int64_t correct_ = 0, total_ = 0;
};

/// Returns the number of classes before `label` in the order of their scores, the highest first. Equal scores are in
/// the order of the classes.
size_t rank_of(std::span<const float> scores, size_t label);

/// Returns CSV like Confusion::csv_of_classes() for labels that each may apply to an image, from scores [n k] and
/// truths [n k] of 0 or 1. A label is predicted where its score is above `threshold`. A line ends with the average
/// precision: the sum over the distinct scores, the highest first, of the gain in recall times the precision of the
/// scores so far.
std::string csv_of_labels(const std::vector<TargetInfo>& labels, std::span<const double> scores,
                          std::span<const float> truths, double threshold);

} // namespace rg
