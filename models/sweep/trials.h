// Runs many trainings in parallel over the ranks. Each training is a trial with its own options. This is the command
// `sweep` of each training program (models/training_main.h).
//
// The options of such a program choose the trials: a CSV file with option names in its first line, or a grid, which is
// all combinations of some values, or points drawn from it at random. If a file and a grid are given, every row of the
// file is combined with every point of the grid.
//
// A task pool (par/task_pool.h) assigns the trials to ranks. Each trial is a run (models/run/training_run.h) in a
// subfolder of the folder of the sweep. Rank 0 shows the progress, writes the results, and stops trials that lag behind
// the others. Each trial itself checks the stop rules with fixed limits. In the end, rank 0 tests the best trial.
#pragma once

#include "models/sweep/trials_options.h"

namespace rg {

/// Runs the command `sweep` of a program: trials over all ranks, and then a test of the best one on the test set, which
/// no trial sees. Returns the exit code. `name` names the command in messages. Creates a folder with the arguments in
/// its config.json, or with --resume continues in the folder of the run. Trials that finished or were stopped according
/// to the folder's journal are not run again, even if the folder was moved or the stop rules have changed. Failed
/// trials are run again.
///
/// Shows the trials on standard output, and updates results.csv, results.jsonl and report.html; see trials_report.h. A
/// line "stop N" in the folder's file `control` stops trial N. A signal (signals.h) or a file "stop" in the folder ends
/// the run early. SIGINT and the file come from a person, who wants the best trial so far: it is tested. Other signals
/// end the run without the test.
///
/// Before it creates the folder, it checks the options of all trials. Each trial's arguments must be valid values, must
/// hold out a validation set, and must not contain options that only make sense for a single training. Each device and
/// precision must be available, each data set readable, and without --resume also each file of initial values. With
/// --resume, no argument that is stored in the folder may run a command (pipe:) that another user may have written.
int sweep_command(par::Group& group, const Program& program, const std::string& name,
                  const std::vector<std::string>& args);

} // namespace rg
