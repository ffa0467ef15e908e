// See stop_rules.h.
#include "ringgrad/models/sweep/stop_rules.h"

#include "ringgrad/core/text.h"

#include <algorithm>

namespace rg {
namespace {

constexpr size_t kLeastOthers = 3;

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t n = values.size();
    return (values[n / 2] + values[(n - 1) / 2]) / 2;
}

} // namespace

void StopRules::set_below(const std::string& text) {
    below = 0;
    compare = text == "median" ? CompareRule::median : text == "halving" ? CompareRule::halving : CompareRule::none;
    if (compare != CompareRule::none) return;
    RG_CHECK(read_number(text, below) && below >= 0,
             "option --stop-below: expected a number of at least 0, median or halving, got \"", text, "\"");
}

std::string StopRules::reason(const Json& epoch, const Ranking& ranking) const {
    const std::optional<double> found = value_of(epoch, ranking.name);
    if (!found) return "";
    const double value = ranking.unit == "%" ? 100 * *found : *found;
    const auto with_unit = [&](double limit) { return cat(limit, ranking.unit.empty() ? "" : " ", ranking.unit); };
    if (target > 0 && !ranking.is_better(target, value)) return "reached " + with_unit(target);
    const bool is_due = below > 0 && epoch.at("epoch").as_int() >= after;
    if (!is_due || !ranking.is_better(below, value)) return "";
    return (ranking.higher_is_better ? "below " : "above ") + with_unit(below);
}

std::string TrialComparison::add(int64_t trial, const Json& epoch) {
    const std::optional<double> value = value_of(epoch, ranking_.name);
    if (rules_.compare == CompareRule::none || !value) return "";
    const int64_t number = epoch.at("epoch").as_int();
    double best = ranking_.higher_is_better ? *value : -*value;
    for (const auto& [other, values] : values_)
        if (const auto before = values.find(trial); other < number && before != values.end())
            best = std::max(best, before->second);
    values_[number][trial] = best;
    if (number < rules_.after || values_[number].size() <= kLeastOthers) return "";
    return rules_.compare == CompareRule::median ? below_median(trial, number) : below_half(trial, number);
}

std::string TrialComparison::below_median(int64_t trial, int64_t epoch) const {
    const std::map<int64_t, double>& values = values_.at(epoch);
    std::vector<double> others;
    for (const auto& [other, value] : values)
        if (other != trial) others.push_back(value);
    if (values.at(trial) >= median(others)) return "";
    return cat("worse than the median of ", others.size(), " others after epoch ", epoch);
}

std::string TrialComparison::below_half(int64_t trial, int64_t epoch) const {
    int64_t check = rules_.after;
    while (check < epoch) check *= 2;
    if (check != epoch) return "";
    const std::map<int64_t, double>& values = values_.at(epoch);
    const double own = values.at(trial);
    const auto better = std::count_if(values.begin(), values.end(), [&](const auto& v) { return v.second > own; });
    if (better < std::ssize(values) - std::ssize(values) / 2) return "";
    return cat("not in the better half of ", values.size(), " trials after epoch ", epoch);
}

} // namespace rg
