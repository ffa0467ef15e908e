// Runs main() of a program on each of its ranks, and ends the job if one of them fails.
//
// A program built without MPI, or started without a launcher such as mpiexec, is a job of one rank. The program needs
// no extra code for this case. The launcher of another MPI would start several such jobs, which is an error. The
// failure of one rank ends the whole job: a restart from a checkpoint is simpler and more reliable than continuing with
// the other ranks. If the body of one rank returns early without throwing, that rank enters a final barrier. The next
// collective operation of the others does not match it, so the job ends with an error.
#pragma once

#include "par/group.h"

#include <functional>

namespace rg::par {

/// Exit code of a job whose ranks differ (verify.h): EX_PROTOCOL of sysexits.h.
constexpr int kExitRanksDiffer = 76;

/// Implements main(): runs `body` with the group of all ranks, and returns its exit code. If the code is 0, first calls
/// finish_output() (core/options.h). Before it returns, blocks until the bodies of all ranks have returned. If anything
/// throws a std::exception, writes one line to standard error and ends the whole job with exit code 1, or
/// kExitRanksDiffer after RanksDiffer. The line is "error: ... (rank 2)", without the rank if there is only one, or if
/// its link could not be opened. Ranks with different versions of the program end like that before `body`.
int run_ranks_main(int argc, char** argv, const std::function<int(Group&)>& body);

} // namespace rg::par
