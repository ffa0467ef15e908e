// Many trainings at the same time over the ranks: what sweep_cifar and experiment share.
//
// Each trial is a task of a pool, and runs in a folder of its own below the run's. What is shown live, written down
// and judged happens on the controller and in the trial itself; which trial runs where is the pool's business.
#pragma once

#include "core/options.h"
#include "models/run/run_folder.h"
#include "models/sweep/trial_table.h"
#include "models/sweep/trials_report.h"
#include "par/task_pool.h"

#include <functional>

namespace rg {

/// When a trial ends before its time; validation accuracies in percent, judged at the end of an epoch.
struct StopRules {
    double below = 0;        // a trial that is not better after...
    int64_t below_after = 1; // ... so many epochs
    double target = 0;       // a trial that has reached it; 0: none
};

struct Trials {
    std::string program;           // of models/sweep/programs.h
    std::vector<std::string> base; // arguments of all trials
    std::vector<Settings> table;
    int ranks_each = 1;
    StopRules rules;
};

/// The arguments of a program of many trials.
struct TrialsArguments {
    std::vector<std::string> texts = {};
    bool resumed = false; // they begin with those that the resumed run was begun with
    // The folder of that run, if its config.json alone has them; empty if all were typed.
    std::string stored_in = {};
};

/// What programs of many trials have in common on their command lines.
struct TrialsOptions {
    std::string runs = default_runs_folder(), run_name;
    int64_t ranks_per_trial = 1;
    bool resume = false;
    StopRules rules;
    /// Its options go to the group that was begun last, and to one of their own.
    void declare(Options& o);
    /// The arguments with which the run to go on with was begun, and behind them what is given anew, which is nothing
    /// if `typed` begins with the same. Error: no name, or no such run.
    TrialsArguments resumed(const std::string& program, const std::vector<std::string>& typed) const;
};

/// Arguments that every program of trials begins with, so that each trial has a validation set.
inline constexpr const char* kDefaultValidation = "--validation=0.1";

/// Of the program, for the trial of these settings.
std::vector<std::string> arguments_of(const Trials& trials, const Settings& settings);

/// The trials of a run, and its page, in `folder`.
struct TrialsRun {
    TrialsRun(RunFolder& folder, const Trials& trials);
    RunFolder& folder;
    const Trials& trials;
    std::vector<TrialRow> rows;
    TrialsReport report;
};

/// Runs the trials over all ranks, and then finish() on rank 0, which may take its time but not use the group, with the
/// folder of the run: a new one, whose config.json has the arguments, or to resume the old one. Trials that its journal
/// has are not run again, wherever the folder is now and whatever the rules. Shows them on standard output, and keeps
/// results.csv, results.jsonl and report.html up to date, as trials_report.h says. A line "stop N" in the file
/// `control` stops trial N. SIGINT, SIGTERM and a stop request in the folder end it early, without finish(). Gives the
/// exit code. Collective.
///
/// First it checks what would fail in every trial, before there is a folder: all arguments, as the trials' program
/// would; that each trial has a validation set, and no option that makes sense for a single training alone; each device
/// and precision; that no stored argument makes a command of others run; and each data set and file of initial values,
/// which it reads.
int run_trials(par::Group& group, const std::string& program, const TrialsOptions& settings, const Options& options,
               const TrialsArguments& arguments, const Trials& trials, const std::function<void(TrialsRun&)>& finish);

} // namespace rg
