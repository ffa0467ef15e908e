// Turns SIGINT, SIGTERM, SIGUSR1, SIGHUP and SIGPIPE into stop requests. A training loop checks for a stop request in
// each step. If there is one, it saves a checkpoint and ends. A stop request during data loading ends the program soon,
// and nothing is saved.
//
// A signal sets a flag. One of the same kind that comes a second or more after the first kills the process. Others are
// copies of the first request: `timeout` signals its command and then the whole process group. Under MPI a signal may
// reach one rank only, so the ranks must agree on the flag before they act on it.
//
// Exit codes of a training program: 0 if the training is done, or if a person stopped it (SIGINT, a file "stop"); 1
// after an error; par::kExitRanksDiffer if the ranks differ; kExitInterrupted if another signal stopped it. To continue
// after kExitInterrupted, run the same command again; add --resume if there is a checkpoint. Batch systems send SIGTERM
// or SIGUSR1 before a time limit or when they need the machine; a closed terminal sends SIGHUP. Output into a closed
// pipe, as of `train_cifar | head`, sends SIGPIPE. From the exit code, a job script can decide whether to queue the job
// again.
#pragma once

#include "core/stop.h"
#include "par/group.h"

namespace rg {

constexpr int kExitInterrupted = 75; // EX_TEMPFAIL of sysexits.h: "try again later"

/// Makes signals stop requests, and lets SIGBUS end the process with an error text. A signal kills the process if the
/// first of its kind came at least `kill_after` seconds before; this does not apply to SIGPIPE. SIGHUP and SIGPIPE stay
/// ignored if they were ignored when the process started, as by nohup and by service managers. Call this after
/// MPI_Init(), which installs its own handler for SIGUSR1. A second call forgets earlier signals.
void install_stop_signals(double kill_after = 1);

/// Collective. Returns the exit code of a stopped training, the same on all ranks: 0 or kExitInterrupted.
int exit_code_after_stop(par::Group& group);

/// Collective. Call it if load_data() threw Stopped: prints a line on rank 0 and returns exit_code_after_stop().
int stopped_while_loading(par::Group& group);

} // namespace rg
