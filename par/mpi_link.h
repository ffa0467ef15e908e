// The Link over MPI point-to-point messages, with persistent requests.
//
// Compiled only where MPI was found (RG_HAVE_MPI). No header includes mpi.h, so nothing else depends on which MPI it
// is. Programs do not call this: see session.h.
#pragma once

#include "par/link.h"

#include <sys/types.h>

namespace rg::par {

/// Has SIGTERM sent to this process when its parent ends, and at once if its parent is not `parent` any more.
void end_with(pid_t parent);

/// Initialises MPI (once per process) and gives the link of all its ranks; its destructor finalises MPI, or aborts
/// the job when an exception is on its way. Error if MPI does not start.
std::unique_ptr<Link> open_mpi(int& argc, char**& argv);

} // namespace rg::par
