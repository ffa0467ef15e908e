// See stop_rules.h.
#include "models/sweep/stop_rules.h"

#include "core/text.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace rg {
namespace {

constexpr size_t kLeastOthers = 3;

/// Returns the value of a metric in the line of an epoch, in percent if it is a fraction, or NaN if the line has none.
double shown_value(const Json& epoch, const Ranking& metric) {
    return value_of(epoch, metric.name).value_or(NAN) * (metric.unit == "%" ? 100 : 1);
}

bool has_reached(const Json& epoch, const Ranking& metric, double limit) {
    return shown_value(epoch, metric) == limit || metric.is_better(shown_value(epoch, metric), limit);
}

std::string with_unit(double limit, const Ranking& metric) {
    return cat(limit, metric.unit.empty() ? "" : " ", metric.unit);
}

} // namespace

void StopRules::set_below(const std::string& text) {
    below = 0;
    compare = text == "median" ? CompareRule::median : text == "halving" ? CompareRule::halving : CompareRule::none;
    if (compare != CompareRule::none) return;
    RG_CHECK(read_number(text, below) && below >= 0,
             "option --stop-below: expected a number of at least 0, median or halving, got \"", text, "\"");
}

std::string StopRules::sweep_end_reason(const Json& epoch) const {
    if (until_metric.name.empty() || !has_reached(epoch, until_metric, until)) return "";
    return cat("reached ", until_metric.name, " ", with_unit(until, until_metric));
}

std::string StopRules::stop_reason(const Json& epoch, const Ranking& ranking) const {
    if (const std::string end = sweep_end_reason(epoch); !end.empty()) return end;
    if (target > 0 && has_reached(epoch, ranking, target)) return "reached " + with_unit(target, ranking);
    const bool is_due = below > 0 && epoch.at("epoch").as_int() >= after;
    if (!is_due || !ranking.is_better(below, shown_value(epoch, ranking))) return "";
    return (ranking.higher_is_better ? "below " : "above ") + with_unit(below, ranking);
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
    std::vector<double> others;
    for (const auto& [other, of_other] : values_[number])
        if (other != trial) others.push_back(of_other);
    const size_t n = others.size();
    if (number < rules_.after || n < kLeastOthers) return "";
    std::sort(others.begin(), others.end(), std::greater());
    if (rules_.compare == CompareRule::median) {
        if (best >= (others[n / 2] + others[(n - 1) / 2]) / 2) return "";
        return cat("worse than the median of ", n, " others after epoch ", number);
    }
    int64_t check = rules_.after;
    while (check < number) check *= 2;
    if (check != number || best >= others[n / 2]) return "";
    return cat("not in the better half of ", n + 1, " trials after epoch ", number);
}

} // namespace rg
