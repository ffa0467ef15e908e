// The command line of a program that runs trials: its options, the trials that they define, and the checks before any
// trial begins.
#pragma once

#include "models/run/progress.h"
#include "models/run/training.h"
#include "models/sweep/stop_rules.h"
#include "models/sweep/trial_table.h"

namespace rg {

/// The options of a program that runs trials, and the trials that these options define.
struct Trials {
    const Program* program = nullptr; // the training program
    Ranking ranking;
    std::string rank_by, table_file, runs = default_runs_folder(), run_name;
    std::vector<std::string> grid;
    int64_t random = 0; // number of trials drawn from the grid; 0: all combinations
    int64_t ranks_per_trial = 1;
    bool parallel = true, resume = false;
    ProgressKind progress = ProgressKind::automatic;
    std::string stop_below = "0", until;
    StopRules rules;
    std::vector<std::string> base; // arguments of every trial: --validation=0.1, then those of the command line
    std::vector<TrialSettings> table;
    int ranks_each = 1;     // number of ranks of each trial: ranks_per_trial, or all ranks with --no-at-once
    std::vector<int> ranks; // the ranks that run trials: those that take images in all of them; see Workers::ranks
    Json fingerprints = Json::object(); // texts that tell whether images or an --init file have changed, by name
};

/// Returns the arguments of the training program for a trial with these settings.
std::vector<std::string> arguments_of(const Trials& trials, const TrialSettings& settings);

/// The arguments of a sweep: typed ones, or those of the resumed run and then the typed ones.
struct TrialsArguments {
    std::vector<std::string> texts = {}; // the arguments
    bool resumed = false;                // true if `texts` begins with the arguments of the resumed run
    // The folder of the resumed run, if some arguments come only from its config.json. Empty if all were typed.
    std::string stored_in = {};
};

/// Declares the options of a program that runs trials. Their values go to `s`.
void declare(Options& o, Trials& s);

/// Returns the settings of all trials. Throws Error if the options define none or more than kMaxTrials, or if an option
/// is both in the table and in the grid.
std::vector<TrialSettings> make_table(const Trials& s);

/// Returns the metric of an epoch with this name, or without a name, the main metric on the validation set. `metrics`
/// are those of the training. Throws Error, which begins with the option, if there is no such metric.
Ranking ranking_by(const std::string& name, const std::vector<MetricInfo>& metrics, const char* option = "--rank-by");
/// Collective. Throws Error if an option of a trial is wrong; see sweep_command(). Sets `ranking`, the metric of
/// --until, `ranks`, `ranks_each` and `fingerprints`. `stored_in` is that of TrialsArguments.
void check_trials(par::Group& group, const std::string& name, Trials& trials, const std::string& stored_in);

/// Returns the arguments of the run to resume, followed by the `typed` ones and --resume. If `typed` begins with the
/// arguments of the run, does not add these twice. Throws Error if there is no --run-name or no such run, or if `typed`
/// adds --init.
TrialsArguments arguments_to_resume(const std::string& program, const Trials& s, const std::vector<std::string>& typed);

/// Returns the arguments without an option, such as "--init", and its values.
std::vector<std::string> without(const std::vector<std::string>& arguments, const std::string& option);

} // namespace rg
