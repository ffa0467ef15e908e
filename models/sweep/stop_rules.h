// Rules that end a trial, or the whole sweep, early. They are checked at the ends of epochs.
#pragma once

#include "models/sweep/trial_table.h"

#include <map>

namespace rg {

/// Rules that compare a trial with the other trials, by the best value so far of the ranking's metric.
enum class CompareRule {
    none,
    median,  // stops a trial that is worse than the median of the others after the same epoch
    halving, // stops a trial that is not in the better half after N, 2 N, 4 N, ... epochs; N is StopRules::after
};

struct StopRules {
    // `below` and `target` are values of the metric that ranks the trials, in percent if it is a fraction. 0: off.
    double below = 0;  // stops a trial that is worse than this
    double target = 0; // stops a trial that has reached this
    CompareRule compare = CompareRule::none;
    int64_t after = 1; // first epoch at whose end `below` and `compare` are checked
    // The first trial whose `until_metric` has reached `until`, in percent if it is a fraction, ends the sweep.
    Ranking until_metric = {}; // without a name: off
    double until = 0;

    /// Sets `below` or `compare` from a text: a number, "median" or "halving". Turns the other one off. Throws Error
    /// for another text.
    void set_below(const std::string& text);
    /// Returns why the last epoch of a trial ends the sweep, such as "reached validation_loss 0.5", or "".
    std::string sweep_end_reason(const Json& epoch) const;
    /// Returns why `until`, `target` or `below` stops a trial after this epoch, or "".
    std::string stop_reason(const Json& epoch, const Ranking& ranking) const;
};

/// Applies the rule in StopRules::compare. At the end of a trial's epoch, compares the trial's best value so far with
/// the other trials' best values up to the same epoch, since single values are noisy. Stops a trial only if at least
/// three others have reached that epoch, since fewer say little. Does not wait for slower trials. So the first three
/// trials that reach an epoch go on, and the order in which trials reach it may decide which ones are stopped.
///
/// Median rule: Golovin et al., "Google Vizier", KDD 2017. Halving: ASHA, Li et al., "A system for massively parallel
/// hyperparameter tuning", MLSys 2020.
class TrialComparison {
public:
    TrialComparison(const StopRules& rules, const Ranking& ranking) : rules_(rules), ranking_(ranking) {}

    /// Adds a trial's line of metrics of an epoch. Returns why the trial should be stopped, or "" if it should not be.
    /// Without a rule, or if the line lacks the ranking's metric, does nothing and returns "".
    std::string add(int64_t trial, const Json& epoch);

private:
    const StopRules rules_;
    const Ranking ranking_;
    std::map<int64_t, std::map<int64_t, double>>
        values_; // best so far, by epoch and trial; negated if lower ones are better
};

} // namespace rg
