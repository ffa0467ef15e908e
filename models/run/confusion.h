// The confusion matrix of a classifier: how often an image of each class was seen as which.
//
// Only pairs that occur are counted, so a matrix takes no more memory than the set of images, however many classes
// there are. Tables show at most kMostShown classes.
#pragma once

#include "models/run/data_parallel.h"

#include <map>

namespace rg {

/// Rows are true labels, columns what was seen. The names outlive it.
class Confusion {
public:
    explicit Confusion(const std::vector<std::string>& classes) : classes_(classes), sums_(classes.size()) {}
    /// Of a whole set.
    Confusion(const data::ImageSet& set, std::span<const Prediction> predictions);
    void add(int32_t truth, size_t seen);
    bool empty() const { return total_ == 0; }
    double accuracy() const { return double(right_) / double(total_); }

    static constexpr size_t kMostShown = 100;
    /// The classes that tables have, in ascending order: all of them up to kMostShown. Of more classes, those that
    /// occur; of more again, half with the most mistakes (missed or wrongly seen) and half with the most images.
    std::vector<size_t> shown() const;
    bool shows_all() const { return classes_.size() <= kMostShown; }

    int64_t count(size_t truth, size_t seen) const;
    int64_t images_of(size_t truth) const { return sums_[truth].images; }
    int64_t seen_as(size_t label) const { return sums_[label].seen; }
    int64_t right() const { return right_; }
    int64_t total() const { return total_; }

    /// As a table for people, with the images and the accuracy of each row. `images`: how many there are in all, also
    /// those without a known label.
    std::string text(size_t images) const;
    /// One line per true class, also of those that are not shown: its name, the counts, the images, the accuracy as a
    /// fraction. The columns are the shown classes.
    std::string csv() const;

private:
    struct Sums {
        int64_t images = 0, seen = 0, right = 0;
    };
    const std::vector<std::string>& classes_;
    std::map<std::pair<size_t, size_t>, int64_t> counts_; // by true and seen class
    std::vector<Sums> sums_;                              // by class
    int64_t right_ = 0, total_ = 0;
};

} // namespace rg
