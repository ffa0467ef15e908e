// The confusion matrix of a classifier: how often images of each class were assigned to each class.
//
// Only pairs that occur are stored, so many classes need little memory if most pairs never occur. Tables have columns
// for at most kMostShown classes.
#pragma once

#include "ringgrad/data/dataset.h"

#include <map>

namespace rg {

/// The rows of the matrix are true classes, its columns are predicted classes. Keeps a reference to the class names,
/// which must outlive this.
class Confusion {
public:
    explicit Confusion(const std::vector<std::string>& classes) : classes_(classes), sums_(classes.size()) {}
    /// Counts the predicted classes of all images of a set. Throws Error unless there is one for each image.
    Confusion(const data::ImageSet& set, std::span<const double> predicted);
    void add(int32_t truth, size_t predicted);
    bool empty() const { return total_ == 0; }

    static constexpr size_t kMostShown = 100;
    /// Returns the classes that tables show, in ascending order. These are all classes if there are at most kMostShown.
    /// Else it leaves out those that never occur. If more than kMostShown remain, it takes kMostShown / 2 classes with
    /// the most mistakes (as true or as predicted class). Then it adds the kMostShown / 2 other classes with the most
    /// images.
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

private:
    struct Sums {
        int64_t images = 0, predicted = 0, correct = 0;
    };
    const std::vector<std::string>& classes_;
    std::map<std::pair<size_t, size_t>, int64_t> counts_; // by true and predicted class
    std::vector<Sums> sums_;                              // by class
    int64_t correct_ = 0, total_ = 0;
};

} // namespace rg
