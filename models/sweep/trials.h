// Runs many trainings in parallel over the ranks. Each training is a trial with its own options. The command `sweep` of
// a training program (models/training_main.h) does so, and a program may do so with several training programs:
//
//     int main(int argc, char** argv) {
//         return run_trials_main(argc, argv, {"sweep_all", "trains my networks", {&my_training, &my_other_training}});
//     }
//
// The options of such a program choose the trials: a CSV file with option names in its first line, or a grid, which is
// all combinations of some values, or points drawn from it at random. If a file and a grid are given, every row of the
// file is combined with every point of the grid.
//
// A task pool (par/task_pool.h) assigns the trials to ranks. Each trial is a run (models/run/training_run.h) in a
// subfolder of the folder of the sweep. Rank 0 shows the progress, writes the results, and stops trials that lag behind
// the others. Each trial checks the stop rules of fixed values itself. In the end, rank 0 tests the best trial.
#pragma once

#include "ringgrad/core/options.h"
#include "ringgrad/models/run/training.h"
#include "ringgrad/models/run/progress.h"
#include "ringgrad/models/run/run_folder.h"
#include "ringgrad/models/sweep/stop_rules.h"
#include "ringgrad/models/sweep/trial_table.h"
#include "ringgrad/models/sweep/trials_report.h"
#include "ringgrad/par/task_pool.h"

#include <functional>

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
    std::string stop_below = "0";
    StopRules rules;
    std::vector<std::string> base; // arguments of every trial: the defaults, then those of the command line
    std::vector<TrialSettings> table;
    int ranks_each = 1; // number of ranks of each trial: ranks_per_trial, or all ranks with --no-at-once
};

/// Returns the arguments of the training program for a trial with these settings.
std::vector<std::string> arguments_of(const Trials& trials, const TrialSettings& settings);

/// The state of all trials of a run, and their common report.
struct TrialsRun {
    TrialsRun(RunFolder& folder, const Trials& trials);
    RunFolder& folder;
    const Trials& trials;
    std::vector<TrialRow> rows;
    TrialsReport report;
};

/// The description of a program that runs trials, for run_trials_main().
struct TrialsProgram {
    std::string name, description;
    std::vector<const Program*> programs; // training programs; --program chooses one if there are several
    /// Arguments of all trials, after --validation=0.1. Those of the command line follow and override them.
    std::vector<std::string> defaults = {};
    /// The grid if neither --grid nor --table is given. If it is empty, the user must give --grid or --table.
    std::vector<std::string> default_grid = {};
    /// Changes the settings of a trial, for example to derive one option from another.
    void (*adjust)(const Trials& trials, TrialSettings& settings) = nullptr;
};

/// The main() of a program that runs trials. Runs the trials over all ranks, tests the best one on the test set, which
/// no trial sees, and returns the exit code. Creates a folder with the arguments in its config.json, or with --resume
/// continues in the folder of the run. Trials that finished or were stopped according to the folder's journal are not
/// run again, even if the folder was moved or the stop rules have changed. Failed trials are run again.
///
/// Shows the trials on standard output, and updates results.csv, results.jsonl and report.html; see trials_report.h. A
/// line "stop N" in the folder's file `control` stops trial N. A signal (signals.h) or a file "stop" in the folder ends
/// the run early. SIGINT and the file come from a person, who wants the best trial so far: it is tested. Other signals
/// end the run without the test.
///
/// Before it creates the folder, it checks the options of all trials. Each trial's arguments must be valid, must hold
/// out a validation set, and must not contain options that only make sense for a single training. Each device and
/// precision must be available, each data set readable, and without --resume also each file of initial values. With
/// --resume, no argument that is stored in the folder may run a command (pipe:) that another user may have written.
int run_trials_main(int argc, char** argv, const TrialsProgram& program);

} // namespace rg
