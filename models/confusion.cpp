// Counts as text: one table for people, one for programs.
#include "models/confusion.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

namespace rg {
namespace {

std::string percent(int64_t part, int64_t whole) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f%%", 100 * double(part) / double(whole));
    return text;
}

std::string right_aligned(const std::string& text, size_t width) {
    return std::string(width > text.size() ? width - text.size() : 0, ' ') + text;
}

} // namespace

Confusion::Confusion(const data::ImageSet& set, std::span<const Prediction> predictions) : Confusion(set.classes) {
    RG_CHECK(int64_t(predictions.size()) == set.count, "confusion: expected a prediction for each of ", set.count,
             " images, got ", predictions.size());
    for (size_t i = 0; i < predictions.size(); ++i) {
        RG_CHECK(size_t(predictions[i].label) < classes_.size(), "confusion: expected a label below ", classes_.size(),
                 ", got ", predictions[i].label, " (image ", i, ")");
        add(set.labels[i], size_t(predictions[i].label));
    }
}

bool Confusion::empty() const {
    return std::all_of(counts_.begin(), counts_.end(), [](int64_t n) { return n == 0; });
}

int64_t Confusion::row_sum(size_t i) const {
    const auto counts = row(i);
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

std::pair<int64_t, int64_t> Confusion::sums() const {
    int64_t right = 0, total = 0;
    for (size_t i = 0; i < classes_.size(); ++i) {
        right += counts_[i * classes_.size() + i];
        total += row_sum(i);
    }
    return {right, total};
}

double Confusion::accuracy() const {
    const auto [right, total] = sums();
    return double(right) / double(total);
}

std::string Confusion::text(size_t images) const {
    const size_t n = classes_.size();
    const auto [right, total] = sums();
    if (total == 0) return cat(images, " images, none with a known label\n");
    std::string out = cat(images, " images");
    if (size_t(total) != images) out += cat(", ", total, " with a known label");
    out += cat("; accuracy ", percent(right, total), " (", right, " of ", total, ")\n");

    size_t name_width = 0, cell = cat(n - 1).size();
    for (const std::string& name : classes_) name_width = std::max(name_width, name.size());
    for (const int64_t count : counts_) cell = std::max(cell, cat(count).size());
    ++cell;
    out += cat("\nconfusion: rows true, columns seen\n", std::string(5 + name_width, ' '));
    for (size_t j = 0; j < n; ++j) out += right_aligned(cat(j), cell);
    out += "   images   right\n";
    for (size_t i = 0; i < n; ++i) {
        out += right_aligned(cat(i), 4) + " " + classes_[i] + std::string(name_width - classes_[i].size(), ' ');
        for (size_t j = 0; j < n; ++j) out += right_aligned(cat(counts_[i * n + j]), cell);
        const int64_t row = row_sum(i);
        out += right_aligned(cat(row), 9) + right_aligned(row ? percent(counts_[i * n + i], row) : "-", 8) + "\n";
    }
    return out;
}

std::string Confusion::csv() const {
    const size_t n = classes_.size();
    std::string out = "true class";
    for (const std::string& name : classes_) out += "," + name;
    out += ",images,accuracy\n";
    for (size_t i = 0; i < n; ++i) {
        out += classes_[i];
        for (size_t j = 0; j < n; ++j) out += cat(",", counts_[i * n + j]);
        const int64_t row = row_sum(i);
        out += cat(",", row, ",", row ? cat(double(counts_[i * n + i]) / double(row)) : "", "\n");
    }
    return out;
}

} // namespace rg
