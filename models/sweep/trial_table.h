// A table of trials: one row per training, its settings in columns; where it comes from, and what becomes of it.
#pragma once

#include "core/json.h"

namespace rg {

/// Option names without the dashes, and values, in order.
using Settings = std::vector<std::pair<std::string, std::string>>;

/// More trials, and longer names of options, are taken for a mistake. So a table takes at most 500 bytes of memory per
/// byte of its text, and a grid kMaxTrials settings of each of its options.
inline constexpr size_t kMaxTrials = 100'000, kMaxOptionName = 100;

/// All combinations of values, the first option changing slowest. Each text is "NAME=1:4" (whole numbers from, to; or
/// FROM:STEP:TO) or "NAME=a,b,c", where a value with a comma is in quotes, as in CSV. Error: another form, a name
/// twice, more than kMaxTrials.
std::vector<Settings> trial_grid(const std::vector<std::string>& options);
/// From CSV: names in its first line, one trial per line; an empty field leaves that option alone. `name` is for
/// messages; a byte-order mark in front is passed over. Error: no trials, more than kMaxTrials, a name that is none,
/// too long or there twice, a line that has not one field per name, data from a pipe: (a table is no command line).
std::vector<Settings> parse_trials(std::string_view csv, const std::string& name);
std::vector<Settings> read_trials(const std::string& path);
/// "depth 2, width 11".
std::string text_of(const Settings& settings);
/// "--depth=2", "--width=11".
std::vector<std::string> arguments_of(const Settings& settings);

/// The validation accuracy in an epoch's line of metrics; below 0: none. Trials are ranked and stopped by nothing else:
/// a test set that has chosen between trials says nothing about the chosen one any more.
double accuracy_of(const Json& epoch);

/// One trial, and what is known of it.
struct TrialRow {
    int64_t number = 0; // from 1
    Settings settings;
    std::string state = "queued"; // running, finished, stopped, failed
    std::string note;             // why it was stopped or failed
    std::string folder;
    Json live; // its newest line of metrics
    Json last; // its last epoch's line; null before there is one
    std::vector<int> ranks;
    double seconds = 0;

    double accuracy() const { return accuracy_of(last); }
};

/// The one of the highest validation accuracy, the first of equals; null if none has any.
const TrialRow* best_of(const std::vector<TrialRow>& rows);

/// results.csv and results.jsonl in the folder, both whole: number, settings, state, metrics of the last epoch, time.
void write_results(const std::string& folder, const std::vector<TrialRow>& rows);

} // namespace rg
