// One trial of a sweep: a training on some ranks of the task pool, and what its folder holds.
#pragma once

#include "ringgrad/models/sweep/trials_options.h"
#include "ringgrad/par/task_pool.h"

namespace rg {

/// The task of the pool: runs one trial in a subfolder of `runs`. Returns its result on the first rank of the trial,
/// else null. If an earlier run of the program has left a checkpoint of this trial, the trial continues from that. The
/// journal identifies a trial by `args`. So `args` has neither the folder nor the stop rules, which may change.
Json run_trial(par::TaskContext& task, const Json& args, const std::string& runs, const Trials& trials);

/// Returns true for the line of an epoch. Lines of steps also have "step", and other lines have no "epoch".
bool is_epoch(const Json& line);

/// Calls `use` with the line of each epoch in the metrics of a run. Ends at the first damaged one, and does nothing if
/// the file cannot be read.
void for_each_epoch(const std::string& run, const std::function<void(const Json&)>& use);

/// Returns the line of the last epoch in the metrics of a run, or null if there is none or the file cannot be read. The
/// reports of this process are not enough: a resumed trial may end before it finishes another epoch.
Json last_epoch(const std::string& run);

} // namespace rg
