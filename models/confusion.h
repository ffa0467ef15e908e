// The confusion matrix of a classifier: how often an image of each class was seen as which.
#pragma once

#include "models/data_parallel.h"

namespace rg {

/// Rows are true labels, columns what was seen. The names outlive it.
class Confusion {
public:
    explicit Confusion(const std::vector<std::string>& classes)
        : classes_(classes), counts_(classes.size() * classes.size()) {}
    /// Of a whole set.
    Confusion(const data::ImageSet& set, std::span<const Prediction> predictions);
    void add(int32_t truth, size_t seen) { ++counts_[size_t(truth) * classes_.size() + seen]; }
    bool empty() const;
    double accuracy() const;
    std::span<const int64_t> row(size_t truth) const {
        return std::span(counts_).subspan(truth * classes_.size(), classes_.size());
    }

    /// As a table for people, with the images and the accuracy of each row. `images`: how many there are in all, also
    /// those without a known label.
    std::string text(size_t images) const;
    /// One line per true class: its name, the counts, the images, the accuracy as a fraction.
    std::string csv() const;

private:
    int64_t row_sum(size_t i) const;
    std::pair<int64_t, int64_t> sums() const; // images seen as what they are, and all

    const std::vector<std::string>& classes_;
    std::vector<int64_t> counts_;
};

} // namespace rg
