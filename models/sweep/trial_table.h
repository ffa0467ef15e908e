// Defines trials by a table (one row per trial, one column per option) or by a grid, and writes the results of trials.
#pragma once

#include "core/json.h"
#include "models/run/task.h"

#include <optional>
#include <set>

namespace rg {

/// The options that a trial sets: their names without dashes, and their values.
using TrialSettings = std::vector<std::pair<std::string, std::string>>;

/// Limits, so that a table or a grid cannot use up the memory. With them, a table needs at most 500 bytes of memory per
/// byte of its text, and a grid has at most kMaxTrials settings per option. More trials or longer option names are an
/// error.
inline constexpr size_t kMaxTrials = 100'000, kMaxOptionName = 100;

/// Returns all combinations of the options' values; the first option changes slowest. Each text is "NAME=FROM:TO" or
/// "NAME=FROM:STEP:TO" (whole numbers), or "NAME=a,b,c" or "NAME=choice:a,b,c", where a value that contains a comma is
/// in quotes, as in CSV. With "choice:", a value may look like a range.
/// Throws Error for another form, for a name that occurs twice, and for more than kMaxTrials combinations.
std::vector<TrialSettings> trial_grid(const std::vector<std::string>& options);
/// Returns `count` different trials, drawn at random from the same texts as trial_grid() takes. A text may also be a
/// range, "NAME=linear:FROM:TO" or "NAME=log:FROM:TO" (uniform logarithm). Its values are rounded to four significant
/// digits. Each trial depends only on the texts, the seed, its number, and the trials before it. So a larger `count`
/// appends trials.
/// Throws Error for another form, for a name that occurs twice, and if 10,000 draws give no new trial.
std::vector<TrialSettings> random_trials(const std::vector<std::string>& options, int64_t count, uint64_t seed);
/// Parses CSV: option names in the first line, then one trial per line. An empty field does not set that option. Empty
/// lines and a byte-order mark at the beginning are ignored. `name` is for error messages. Throws Error if there are no
/// trials or more than kMaxTrials, if a name is invalid, too long or repeated, if a line does not have one field per
/// name, or if a field is a command (data from pipe:), since tables may come from other users.
std::vector<TrialSettings> parse_trials(std::string_view csv, const std::string& name);
/// Returns a text like "depth 2, width 11".
std::string settings_text(const TrialSettings& settings);
/// Returns arguments like "--depth=2". For the values true and false, they are like "--sync-bn" and "--no-sync-bn".
std::vector<std::string> arguments_of(const TrialSettings& settings);

/// The metric of an epoch that says which trial is best: its name in metrics.jsonl, such as validation_accuracy, and
/// how to show it. It is never a test accuracy: the test set would rate a network too well that it has helped to
/// choose.
using Ranking = MetricInfo;
/// Returns the value of this metric in a line of metrics.jsonl, or nullopt if the line has none or a NaN.
std::optional<double> value_of(const Json& line, const std::string& metric);

/// A trial, its state and its results so far.
struct TrialRow {
    int64_t number = 0; // from 1
    TrialSettings settings;
    std::string state = "queued"; // or running, finished, stopped, failed
    std::string note;             // reason, if it was stopped or failed; "done before" if in an earlier run
    std::string folder;           // folder of the trial's run, relative to that of the sweep
    Json live;                    // newest metrics.jsonl line that this run of the sweep has received, or null
    Json last;                    // line of the last complete epoch; null if there is none
    std::vector<int> ranks;
    double seconds = 0;
};

/// Returns the names of the settings whose values are not the same in all rows. A trial without a setting differs from
/// one that has it.
std::set<std::string> differing_settings(const std::vector<TrialRow>& rows);

/// Returns the trials that have the metric of `ranking` and have not failed, best first. Equal ones keep their order.
std::vector<const TrialRow*> best_first(const std::vector<TrialRow>& rows, const Ranking& ranking);

/// Writes results.csv and results.jsonl in the folder. A row has number, settings, state, metrics of the last epoch,
/// time, note and folder.
void write_results(const std::string& folder, const std::vector<TrialRow>& rows);

} // namespace rg
