// SIGINT, SIGTERM, SIGUSR1 and SIGHUP as requests to stop: the training loop looks between steps, and ends with a
// checkpoint. Loading data ends at once, with nothing to save.
//
// The first signal sets a flag and puts the system's own handling back, so the second one of the same kind kills as
// usual. Under MPI a signal may reach one rank only: the ranks must agree on the flag before they act on it.
//
// Exit codes of a training: 0, it is done, or a person has stopped it (SIGINT, a stop request); 1, an error;
// kExitInterrupted, another signal has stopped it before its end, and the same command goes on, with --resume if there
// is a checkpoint. These signals are what batch systems send before a time limit or when they need the machine, and
// what is left when a terminal is closed. A job script tells by the code whether to queue the job again.
#pragma once

#include "core/stop.h"
#include "par/group.h"

namespace rg {

constexpr int kExitInterrupted = 75; // EX_TEMPFAIL of sysexits.h: "try again later"

/// From here on the first signal of each kind only requests a stop, and a file that may not grow further (SIGXFSZ) is
/// an error where it is written. SIGHUP stays ignored if it was when the process started (nohup). MPI takes SIGUSR1 for
/// itself when it starts: call this after.
void install_stop_signals();

/// Collective. Returns the exit code of a training that was stopped, the same on all ranks: 0 or kExitInterrupted.
int stopped_exit_code(par::Group& group);

/// Collective, for a program whose load_data() threw Stopped: says so on rank 0 and returns stopped_exit_code().
int stopped_while_loading(par::Group& group);

} // namespace rg
