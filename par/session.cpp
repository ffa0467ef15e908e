// Starts and ends a program with ranks. No other source file of par/ depends on whether the build has MPI, except
// mpi_link.cpp, which only builds with MPI contain.
//
// The order of destruction matters: the group must close its channels before the link finalises MPI.

#include "par/session.h"

#include "core/options.h"
#include "core/text.h"
#include "core/version.h"
#include "par/verify.h"
#if RG_HAVE_MPI
#include "par/mpi_link.h"
#endif

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace rg::par {

namespace {

/// Throws Error if a launcher has started several processes, but MPI knows this one alone. Without this, each of them
/// would be a job of its own. PMI_SIZE comes first, since mpiexec of MPICH may start its helpers in a job step of
/// several processes. SLURM_NTASKS does not count, since a batch script, which is a single process, has it too.
void check_launcher() {
    for (const char* name : {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"}) {
        const char* const ranks = std::getenv(name);
        if (!ranks) continue;
        const bool has_mpi = std::string_view(kMpi) != "no";
        int64_t number = 0;
        RG_CHECK(
            !read_number(ranks, number) || number <= 1, "launcher: expected ", ranks, " ranks, as ", name,
            " says, got 1 in this build, ", "whose MPI is ", has_mpi ? kMpi : "disabled", "; ",
            has_mpi
                ? "use the mpiexec of that MPI (that of MPICH 4.2.0 on Ubuntu 24.04 starts ranks that do not know each "
                  "other: install another MPI)"
                : "build it with MPI",
            ", or unset ", name, " for jobs of one rank");
        return;
    }
}

/// Returns how long a rank waits before it reports its own error, unless that is a RankMissing. All ranks notice a
/// common mistake, such as a missing file, at the same time. With the delay, rank 0 reports it and ends the job, so
/// that the user reads one line instead of one per rank. On a busy machine, the end may take half a second.
constexpr std::chrono::milliseconds delay_of(int rank) {
    return std::chrono::milliseconds(rank == 0 ? 0 : 750 + 250 * std::min(rank, 4));
}

/// Delay before a rank reports that another rank has failed (PeerFailed). The failed rank reports its error first and
/// ends the job.
constexpr std::chrono::milliseconds kEcho{3000};

/// Delay between the line with the error on standard error and the abort. mpiexec exits as soon as it sees the abort,
/// and loses output that it has not read yet. With three times as many busy processes as cores, 100 ms did not suffice.
constexpr std::chrono::milliseconds kForwarding{400};

/// Replaces kForwarding if a rank is missing (RankMissing). During the delay, the other ranks learn the missing rank's
/// name (RollCall), and report it too.
constexpr std::chrono::milliseconds kHearing{500};

/// Returns the version and the git commit. The rest of kBuild may differ between machines, such as the kinds of GPUs.
std::string_view version() { return std::string_view(kBuild).substr(0, std::string_view(kBuild).find(',')); }

int fail_job(Link* link, const std::exception& error) {
    const std::string text = printable(error.what());
    const bool missing = dynamic_cast<const RankMissing*>(&error);
    if (link && link->size() > 1) {
        if (dynamic_cast<const PeerFailed*>(&error))
            std::this_thread::sleep_for(kEcho);
        else if (!missing)
            std::this_thread::sleep_for(delay_of(link->rank()));
        std::fprintf(stderr, "error: %s (rank %d)\n", text.c_str(), link->rank());
    } else {
        std::fprintf(stderr, "error: %s\n", text.c_str());
    }
    std::fflush(nullptr);
    if (link && link->size() > 1) std::this_thread::sleep_for(missing ? kHearing : kForwarding);
    const int code = dynamic_cast<const RanksDiffer*>(&error) ? kExitRanksDiffer : 1;
    if (link) link->abort(code); // does not return under MPI
    return code;
}

} // namespace

int run_ranks_main([[maybe_unused]] int argc, [[maybe_unused]] char** argv, const std::function<int(Group&)>& body) {
    std::shared_ptr<Link> link;
    std::unique_ptr<Group> group; // outlives body: peers may still read from its buffers
    try {
        prepare_process();
#if RG_HAVE_MPI
        link = open_mpi_link(argc, argv);
#else
        link = std::make_shared<SingleLink>();
#endif
        if (link->size() == 1) check_launcher();
        link->read_environment();
        group = std::make_unique<Group>(*link);
        verify_same(*group, "program", {cat("version ", version())}, "install one version on all machines");
        const int code = body(*group);
        if (code == 0) finish_output();
        group->barrier("end"); // names a missing rank, which MPI_Finalize cannot
        return code;
    } catch (const std::exception& error) {
        return fail_job(link.get(), error);
    }
}

} // namespace rg::par
