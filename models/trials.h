// Many trainings at the same time over the ranks: what sweep_cifar and experiment share.
//
// Each trial is a task of a pool, and runs in a folder of its own below the run's. What is shown live, written down
// and judged happens on the controller and in the trial itself; which trial runs where is the pool's business.
#pragma once

#include "core/options.h"
#include "models/run_folder.h"
#include "models/trial_table.h"
#include "models/trials_report.h"
#include "par/task_pool.h"

namespace rg {

/// When a trial ends before its time; accuracies in percent, judged at the end of an epoch, on the set that the trial
/// is tested on.
struct StopRules {
    double below = 0;        // a trial that is not better after...
    int64_t below_after = 1; // ... so many epochs
    double target = 0;       // a trial that has reached it; 0: none
};

struct Trials {
    std::string program;           // of models/programs.h
    std::vector<std::string> base; // arguments of all trials
    std::vector<Settings> table;
    int ranks_each = 1;
    StopRules rules;
};

/// The folder of a run of many trials, locked: a new one, with a config.json that has the arguments; or, to resume, the
/// old one.
RunFolder open_trials_folder(const std::string& runs, const std::string& name, const std::string& program, bool resume,
                             const std::vector<std::string>& arguments, int ranks, const Options& options);
/// The arguments with which a run was begun. Error: no name, or no such run.
std::vector<std::string> arguments_of_run(const std::string& runs, const std::string& name, const std::string& program);

/// A trial as it stands, for people.
std::string line_of(const TrialRow& row);

/// The functions of the pool; the same on all ranks.
par::TaskTable trial_functions();

/// Checks all arguments as the program itself would.
void check_trials(const Trials& trials);

/// The trials of a run, and its page, in `folder`.
struct TrialsRun {
    TrialsRun(RunFolder& folder, const Trials& trials);
    RunFolder& folder;
    const Trials& trials;
    std::vector<TrialRow> rows;
    TrialsReport report;
};

/// On the controller. Runs all, or those that the pool's journal does not have; shows them on standard output, and
/// keeps results.csv, results.jsonl and report.html up to date. A line "stop N" in the file `control` stops trial N.
/// SIGINT and SIGTERM, where install_stop_signals() was called, and a stop request in the folder end it early: then
/// some are still "queued".
void run_trials(par::TaskPool& pool, TrialsRun& run);

} // namespace rg
