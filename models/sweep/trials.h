// Runs many trainings in parallel over the ranks, for sweep_cifar and experiment.
//
// Each trial is a task of a pool and a run in a subfolder of the sweep's folder. The pool assigns trials to ranks. The
// controller (rank 0) shows progress and writes the results; each trial applies the stop rules to itself.
#pragma once

#include "ringgrad/core/options.h"
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

/// The options of experiment, and the trials that they define. A preset like sweep_cifar declares only some of these
/// options.
struct Trials {
    std::string program = "train_cifar", table_file, runs = default_runs_folder(), run_name;
    std::vector<std::string> grid;
    int64_t ranks_per_trial = 1;
    bool parallel = true, resume = false;
    StopRules rules;
    std::vector<std::string> base; // arguments of every trial: the defaults, then those of the command line
    std::vector<TrialSettings> table;
    int ranks_each = 1; // number of ranks of each trial: ranks_per_trial, or all ranks with --no-at-once
};

/// A default argument of all trials, so that each has a validation set.
inline constexpr const char* kDefaultValidation = "--validation=0.1";

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

/// A program that runs trials: experiment, or a preset of it.
struct TrialsProgram {
    const char *name, *description;
    const char* passed_on;             // text for --help about the options of the training program
    std::vector<std::string> defaults; // arguments of all trials; those of the command line follow and override them
    /// Declares the options that choose the trials.
    void (*declare)(Options& o, Trials& trials);
    /// Returns the trials. Throws Error if the options do not define any.
    std::vector<TrialSettings> (*make_table)(const Trials& trials);
    /// Called on rank 0 after all trials. It may take long, but must not use the group of the ranks.
    void (*finish)(TrialsRun& run);
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
