// Runs many trainings in parallel over the ranks. A program that does so, for example for one's own training:
//
//     int main(int argc, char** argv) {
//         return run_trials_main(argc, argv, {"own_sweep", "trains my network with several options", {&my_training}});
//     }
//
// The options of such a program choose the trials: a CSV file with option names in its first line, or a grid, which is
// all combinations of some values. If both are given, every row of the file is combined with every point of the grid.
//
// Each trial is a task of a pool and a run in a subfolder of the sweep's folder. The pool assigns trials to ranks. The
// controller (rank 0) shows progress and writes the results; each trial applies the stop rules to itself.
#pragma once

#include "ringgrad/core/options.h"
#include "ringgrad/models/run/program.h"
#include "ringgrad/models/run/run_folder.h"
#include "ringgrad/models/sweep/trial_table.h"
#include "ringgrad/models/sweep/trials_report.h"
#include "ringgrad/par/task_pool.h"

#include <functional>

namespace rg {

/// Rules that end a trial early. They compare validation accuracies, in percent, at the end of each epoch.
struct StopRules {
    double below = 0;        // stops a trial whose accuracy is below this; 0: off
    int64_t below_after = 1; // first epoch at whose end `below` is checked
    double target = 0;       // stops a trial that has reached this accuracy; 0: off
};

/// The options of a program of trials, and the trials that they define.
struct Trials {
    const Program* program = nullptr; // trains
    Ranking ranking;
    std::string table_file, runs = default_runs_folder(), run_name;
    std::vector<std::string> grid;
    int64_t ranks_per_trial = 1;
    bool parallel = true, resume = false;
    StopRules rules;
    std::vector<std::string> base; // arguments of every trial: the defaults, then those of the command line
    std::vector<TrialSettings> table;
    int ranks_each = 1; // number of ranks of each trial: ranks_per_trial, or all ranks with --no-at-once
};

/// Returns the arguments of the training program for a trial with these settings.
std::vector<std::string> arguments_of(const Trials& trials, const TrialSettings& settings);

/// The state of all trials of a sweep or an experiment, and the report.
struct TrialsRun {
    TrialsRun(RunFolder& folder, const Trials& trials);
    RunFolder& folder;
    const Trials& trials;
    std::vector<TrialRow> rows;
    TrialsReport report;
};

/// A program that runs trials.
struct TrialsProgram {
    std::string name, description;
    std::vector<const Program*> programs; // training programs; --program chooses one if there are several
    std::vector<std::string> defaults =
        {}; // arguments of all trials; those of the command line follow and override them
    /// The grid without --grid and --table. If it is empty, one of these is required.
    std::vector<std::string> default_grid = {};
    /// Changes the settings of a trial, for example to derive one option from another.
    void (*adjust)(const Trials& trials, TrialSettings& settings) = nullptr;
    /// Called on rank 0 after all trials. It may take long, but must not use the group of the ranks. Null: prints the
    /// trials, best first.
    void (*finish)(TrialsRun& run) = nullptr;
};

/// The main() of such a program. Runs the trials over all ranks, then finish() on rank 0, and returns the exit code.
/// Creates a folder with the arguments in its config.json, or with --resume continues in the folder of the run. Trials
/// that have ended according to the folder's journal are not run again, even if the folder was moved or the stop rules
/// have changed.
///
/// Shows the trials on standard output, and updates results.csv, results.jsonl and report.html; see trials_report.h. A
/// line "stop N" in the folder's file `control` stops trial N. A signal (signals.h) or a file "stop" in the folder ends
/// the run early, without finish().
///
/// Before it creates the folder, it checks for errors that would occur in every trial. Each trial's arguments must be
/// valid, must hold out a validation set, and must not contain options that only make sense for a single training. Each
/// device and precision must be available, and each data set and file of initial values readable. No stored argument
/// may run a command of another user.
int run_trials_main(int argc, char** argv, const TrialsProgram& program);

} // namespace rg
