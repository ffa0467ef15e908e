// Turns SIGINT, SIGTERM, SIGUSR1 and SIGHUP into stop requests. A training loop checks for one after each step, and
// ends with a checkpoint. Loading data ends at once, and nothing is saved.
//
// The first signal sets a flag and restores the default handling, so a second signal of the same kind kills the
// process. Under MPI a signal may reach one rank only, so the ranks must agree on the flag before they act on it.
//
// Exit codes of a training: 0, it is done, or a person stopped it (SIGINT, a file "stop"); 1, an error;
// kExitInterrupted, another signal stopped it, and the same command continues it, with --resume if there is a
// checkpoint. Batch systems send these other signals before a time limit or when they need the machine; a closed
// terminal sends SIGHUP. A job script can decide by the code whether to queue the job again.
#pragma once

#include "ringgrad/core/stop.h"
#include "ringgrad/par/group.h"

namespace rg {

constexpr int kExitInterrupted = 75; // EX_TEMPFAIL of sysexits.h: "try again later"

/// Makes the first signal of each kind a stop request. Ignores SIGXFSZ, so that a write beyond the file size limit is
/// an error of that write. SIGHUP stays ignored if it was ignored when the process started (nohup). Call this after
/// MPI_Init(), which installs its own handler for SIGUSR1.
void install_stop_signals();

/// Collective. Returns the exit code of a stopped training, the same on all ranks: 0 or kExitInterrupted.
int stopped_exit_code(par::Group& group);

/// Collective. Call it if load_data() threw Stopped: prints a line on rank 0 and returns stopped_exit_code().
int stopped_while_loading(par::Group& group);

} // namespace rg
