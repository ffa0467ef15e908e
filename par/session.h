// How a program becomes a set of ranks, and how it ends when one of them fails.
//
// A build without MPI, and a start without mpiexec, is a job of one rank; programs need no second path for it.
// A failure of one rank ends all: restarting from a checkpoint is simpler and more reliable than going on with the
// ranks that are left. A body that returns early on one rank only, without throwing, leaves the others waiting.
#pragma once

#include "par/group.h"

#include <functional>

namespace rg::par {

/// The link of all ranks of this program: MPI where the build has it, else a single rank. One per process.
class Session {
public:
    /// May take launcher arguments out of argv. Error if MPI does not start.
    Session(int& argc, char**& argv);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    Link& link();

private:
    struct State;
    std::unique_ptr<State> state_;
};

/// The body of a program's main(): runs `body` with the group of all ranks, and finish_output() (core/options.h) after
/// it; gives its exit code. If one of the two throws, one line goes to standard error ("error: ... (rank 2)"; no rank
/// where there is one) and the whole job ends with 1.
int run_ranks_main(int argc, char** argv, const std::function<int(Group&)>& body);

} // namespace rg::par
