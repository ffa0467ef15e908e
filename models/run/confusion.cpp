// See confusion.h.
#include "models/run/confusion.h"

#include "core/formatted.h"
#include "core/text.h"

#include <algorithm>
#include <numeric>

namespace rg {
namespace {

std::string percent(int64_t part, int64_t whole) { return formatted("%.1f%%", 100 * double(part) / double(whole)); }

std::string fraction(int64_t part, int64_t whole) { return whole ? cat(double(part) / double(whole)) : ""; }

/// Returns the beginning of a line of CSV, up to the column of F1.
std::string csv_row_start(const std::string& name, int64_t images, int64_t predicted, int64_t correct) {
    return cat(csv_field(name), ",", images, ",", fraction(correct, predicted), ",", fraction(correct, images), ",",
               fraction(2 * correct, images + predicted));
}

} // namespace

Confusion::Confusion(const data::ImageSet& set, std::span<const double> numbers) : Confusion(set.classes) {
    RG_CHECK(std::ssize(numbers) == 2 * set.count, "confusion: expected two numbers for each of ", set.count,
             " images, got ", numbers.size());
    for (size_t i = 0; i < numbers.size() / 2; ++i) {
        RG_CHECK(numbers[2 * i] >= 0 && numbers[2 * i] < double(classes_.size()), "confusion: expected a label below ",
                 classes_.size(), ", got ", numbers[2 * i], " (image ", i, ")");
        add(set.labels[i], size_t(numbers[2 * i]), size_t(numbers[2 * i + 1]));
    }
}

void Confusion::add(int32_t truth, size_t predicted, size_t rank) {
    const size_t row = size_t(truth);
    const bool correct = row == predicted;
    ++counts_[{row, predicted}], ++sums_[row].images, ++sums_[predicted].predicted, ++total_;
    sums_[row].correct += correct, sums_[row].top += rank < kTop, correct_ += correct;
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
    const auto mistakes = [&](size_t i) { return sums_[i].images + sums_[i].predicted - 2 * sums_[i].correct; };
    std::ranges::stable_sort(order, std::greater(), mistakes);
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
    if (!shows_all()) out += cat("; ", rows.size(), " of ", classes_.size(), " classes: those with the most mistakes");
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

std::string Confusion::csv_of_classes() const {
    const bool has_top = classes_.size() > kTop;
    std::string out = cat("class,images,precision,recall,f1", has_top ? cat(",top", kTop) : "", "\n");
    for (size_t i = 0; i < classes_.size(); ++i) {
        const auto& [images, predicted, correct, top] = sums_[i];
        out += csv_row_start(classes_[i], images, predicted, correct) + (has_top ? "," + fraction(top, images) : "") +
               "\n";
    }
    return out;
}

size_t rank_of(std::span<const float> scores, size_t label) {
    const auto is_higher = [&](float score) { return score > scores[label]; };
    return size_t(std::ranges::count_if(scores, is_higher) + std::ranges::count(scores.first(label), scores[label]));
}

std::string csv_of_labels(const std::vector<TargetInfo>& labels, std::span<const double> scores,
                          std::span<const float> truths, double threshold) {
    std::string out = "class,images,precision,recall,f1,average_precision\n";
    for (size_t k = 0; k < labels.size(); ++k) {
        std::vector<std::pair<double, bool>> images; // the negative score, and the truth
        int64_t predicted = 0, correct = 0, seen = 0, right = 0;
        for (size_t i = k; i < scores.size(); i += labels.size()) {
            images.emplace_back(-scores[i], truths[i] > 0.5f);
            predicted += scores[i] > threshold, correct += scores[i] > threshold && images.back().second;
        }
        std::ranges::sort(images);
        double precision = 0;
        for (auto one = images.begin(); one != images.end();) {
            const int64_t before = right;
            for (const double score = one->first; one != images.end() && one->first == score; ++one, ++seen)
                right += one->second;
            precision += double(right - before) * double(right) / double(seen);
        }
        out += cat(csv_row_start(labels[k].name, right, predicted, correct), ",",
                   right ? cat(precision / double(right)) : "", "\n");
    }
    return out;
}

} // namespace rg
