// SIGINT, SIGTERM and SIGUSR1 as a wish to stop, not as an end: the training loop asks before its first step, and
// between two.
//
// The first signal sets a flag and puts the system's own handling back, so the second one of the same kind kills as
// usual. Under MPI a signal may reach one rank only: the ranks must agree on the flag before they act on it.
//
// Exit codes of a training: 0, it is done, or a person has stopped it (SIGINT, a stop request); 1, an error;
// kExitInterrupted, SIGTERM or SIGUSR1 has stopped it before its end, with a checkpoint, and the same command with
// --resume goes on. These two are what batch systems send before a time limit or when they need the machine, and a job
// script tells by the code whether to queue the job again.
#pragma once

#include "par/group.h"

namespace rg {

constexpr int kExitInterrupted = 75; // EX_TEMPFAIL of sysexits.h: "try again later"

/// From here on the first signal of each kind only sets the flag, and a file that may not grow further (SIGXFSZ) is an
/// error where it is written. MPI takes SIGUSR1 for itself when it starts: call this after.
void install_stop_signals();

/// Whether such a signal has come since. May be called from any thread.
bool stop_requested();

/// Collective, of a training that was stopped: 0 or kExitInterrupted, the same on all ranks.
int stopped_exit_code(par::Group& group);

} // namespace rg
