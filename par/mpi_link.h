// The Link over MPI point-to-point messages, with persistent requests.
//
// Compiled only if the build has MPI (RG_HAVE_MPI). No header includes mpi.h, so no other file depends on the MPI
// library in use. Programs use session.h instead.
#pragma once

#include "par/link.h"

#include <sched.h>
#include <sys/types.h>

namespace rg::par {

/// Makes the kernel send SIGTERM to this process when its parent ends. Sends it at once if the parent is no longer
/// `parent`.
void end_with(pid_t parent);

/// Returns how many of these sets have a core in common with `own`.
int count_sharers(const cpu_set_t& own, std::span<const cpu_set_t> sets);

/// Initialises MPI and returns the link of all its ranks. Call it once per process. Throws Error if the MPI library
/// accepts calls from one thread only, or a later collective fails. If MPI_Init_thread or MPI_Comm_dup fails, the
/// library itself ends the process. With several ranks, also calls end_with() for the launcher of this process. The
/// link's destructor finalises MPI, or aborts the job if an exception is being thrown.
std::unique_ptr<Link> open_mpi_link(int& argc, char**& argv);

} // namespace rg::par
