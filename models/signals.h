// SIGINT and SIGTERM as a wish to stop, not as an end: the training loop asks between two steps.
//
// The first signal sets a flag and puts the system's own handling back, so the second one of the same kind kills as
// usual. Under MPI a signal may reach one rank only: the ranks must agree on the flag before they act on it.
#pragma once

namespace rg {

/// From here on the first SIGINT and the first SIGTERM only set the flag. Clears the flag.
void install_stop_signals();

/// Whether such a signal has come since. May be called from any thread.
bool stop_requested();

} // namespace rg
