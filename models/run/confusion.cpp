// See confusion.h.
#include "ringgrad/models/run/confusion.h"

#include "ringgrad/core/formatted.h"
#include "ringgrad/core/text.h"

#include <algorithm>
#include <numeric>

namespace rg {
namespace {

std::string percent(int64_t part, int64_t whole) { return formatted("%.1f%%", 100 * double(part) / double(whole)); }

} // namespace

Confusion::Confusion(const data::ImageSet& set, std::span<const double> predicted) : Confusion(set.classes) {
    RG_CHECK(int64_t(predicted.size()) == set.count, "confusion: expected a prediction for each of ", set.count,
             " images, got ", predicted.size());
    for (size_t i = 0; i < predicted.size(); ++i) {
        RG_CHECK(predicted[i] >= 0 && predicted[i] < double(classes_.size()), "confusion: expected a label below ",
                 classes_.size(), ", got ", predicted[i], " (image ", i, ")");
        add(set.labels[i], size_t(predicted[i]));
    }
}

void Confusion::add(int32_t truth, size_t predicted) {
    const size_t row = size_t(truth);
    const bool correct = row == predicted;
    ++counts_[{row, predicted}], ++sums_[row].images, ++sums_[predicted].predicted, ++total_;
    sums_[row].correct += correct, correct_ += correct;
}

int64_t Confusion::count(size_t truth, size_t predicted) const {
    const auto entry = counts_.find({truth, predicted});
    return entry == counts_.end() ? 0 : entry->second;
}

std::vector<size_t> Confusion::shown() const {
    std::vector<size_t> order(classes_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (shows_all()) return order;
    std::erase_if(order, [&](size_t i) { return sums_[i].images + sums_[i].predicted == 0; });
    if (order.size() <= kMostShown) return order;
    const auto sort = [&](auto begin, const auto& key) {
        std::stable_sort(begin, order.end(), [&](size_t a, size_t b) { return key(sums_[a]) > key(sums_[b]); });
    };
    sort(order.begin(), [](const Sums& s) { return s.images + s.predicted - 2 * s.correct; });
    sort(order.begin() + kMostShown / 2, [](const Sums& s) { return s.images; });
    order.resize(kMostShown);
    std::sort(order.begin(), order.end());
    return order;
}

std::string Confusion::text(size_t images) const {
    if (total_ == 0) return cat(images, " images, none with a known label\n");
    std::string out = cat(images, " images");
    if (size_t(total_) != images) out += cat(", ", total_, " with a known label");
    out += cat("; accuracy ", percent(correct_, total_), " (", correct_, " of ", total_, ")\n");

    const std::vector<size_t> rows = shown();
    constexpr std::string_view kPredicted = "predicted", kCorrect = "correct";
    size_t longest_name = kPredicted.size(), longest_cell = 4; // "100%"
    std::vector<std::string> names;
    for (const size_t i : rows) {
        names.push_back(printable(classes_[i]));
        longest_name = std::max(longest_name, characters(names.back()));
        longest_cell = std::max({longest_cell, cat(i).size(), cat(images_of(i)).size(), cat(predicted_as(i)).size()});
    }
    const auto name_width = std::ptrdiff_t(longest_name), cell_width = -std::ptrdiff_t(longest_cell) - 1;
    out += cat("\nconfusion matrix: rows are true classes, columns predicted classes");
    if (!shows_all())
        out += cat("; ", rows.size(), " of ", classes_.size(),
                   " classes: those with the most mistakes and the most images");
    out += padded("\n", 6 + name_width);
    for (const size_t j : rows) out += padded(cat(j), cell_width);
    out += "   images correct\n";
    for (size_t k = 0; k < rows.size(); ++k) {
        const size_t i = rows[k];
        out += padded(cat(i), -4) + " " + padded(names[k], name_width);
        for (const size_t j : rows) out += padded(cat(count(i, j)), cell_width);
        const int64_t row_images = images_of(i);
        out += padded(cat(row_images), -9) + padded(row_images ? percent(count(i, i), row_images) : "-", -8) + "\n";
    }
    const auto summary = [&](std::string_view title, const auto& cell) {
        out += cat("     ", padded(title, name_width));
        for (const size_t j : rows) out += padded(cell(j), cell_width);
        out += "\n";
    };
    summary(kPredicted, [&](size_t j) { return cat(predicted_as(j)); });
    summary(kCorrect, [&](size_t j) {
        const int64_t n = predicted_as(j);
        return n ? cat((200 * count(j, j) + n) / (2 * n), "%") : "-";
    });
    return out;
}

std::string Confusion::csv() const {
    const std::vector<size_t> columns = shown();
    std::string out = "true class";
    for (const size_t j : columns) out += cat(",", csv_field(classes_[j]));
    out += ",images,accuracy\n";
    for (size_t i = 0; i < classes_.size(); ++i) {
        out += csv_field(classes_[i]);
        for (const size_t j : columns) out += cat(",", count(i, j));
        out += cat(",", images_of(i), ",", images_of(i) ? cat(double(count(i, i)) / double(images_of(i))) : "", "\n");
    }
    return out;
}

} // namespace rg
