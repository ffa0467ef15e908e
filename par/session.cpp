// Starts and ends a program with ranks. No other file of par/ knows whether the build has MPI.
//
// The order of destruction matters: the group must close its channels before the link finalises MPI.

#include "par/session.h"

#include "core/options.h"
#include "core/text.h"
#include "par/thread_link.h"
#if RG_HAVE_MPI
#include "par/mpi_link.h"
#endif

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

namespace rg::par {

#if RG_HAVE_MPI
struct Session::State {
    std::unique_ptr<Link> mpi;
};

Session::Session(int& argc, char**& argv) : state_(new State{open_mpi(argc, argv)}) {}
Link& Session::link() { return *state_->mpi; }
#else
struct Session::State {
    ThreadWorld world{1};
};

Session::Session(int&, char**&) : state_(new State) {}
Link& Session::link() { return state_->world.link(0); }
#endif

Session::~Session() = default;

namespace {

/// Lets lower ranks report first. All ranks notice a mistake that concerns all of them, such as a missing file, at the
/// same time. The delay lets rank 0 report it and end the job, so that the user reads one line instead of one per rank.
void let_lower_ranks_speak(int rank) {
    std::this_thread::sleep_for(std::chrono::milliseconds(250 * std::min(rank, 4)));
}

/// Delay of the report of a rank that only learned of another rank's failure. The rank that failed reports its error
/// first, and ends the job.
constexpr std::chrono::milliseconds kEcho{1500};

/// Delay before an abort. mpiexec exits as soon as it sees the abort, and loses output that it has not read yet.
constexpr std::chrono::milliseconds kForwarding{100};

/// Delay before an abort because of a missing rank. It lets the other ranks learn the missing rank's name first.
constexpr std::chrono::milliseconds kHearing{500};

int fail_job(Link* link, const std::exception& error) {
    const std::string text = printable(error.what());
    const bool missing = dynamic_cast<const RankMissing*>(&error);
    if (link && link->size() > 1) {
        if (dynamic_cast<const PeerFailed*>(&error))
            std::this_thread::sleep_for(kEcho);
        else if (!missing)
            let_lower_ranks_speak(link->rank());
        std::fprintf(stderr, "error: %s (rank %d)\n", text.c_str(), link->rank());
    } else {
        std::fprintf(stderr, "error: %s\n", text.c_str());
    }
    std::fflush(nullptr);
    if (link && link->size() > 1) std::this_thread::sleep_for(missing ? kHearing : kForwarding);
    if (link) link->abort(1); // does not return under MPI
    return 1;
}

} // namespace

int run_ranks_main(int argc, char** argv, const std::function<int(Group&)>& body) {
    try {
        open_standard_streams();
        Session session(argc, argv);
        std::unique_ptr<Group> group; // outlives body: peers may still read from its buffers
        try {
            session.link().read_environment();
            group = std::make_unique<Group>(session.link());
            const int code = body(*group);
            if (code == 0) finish_output();
            group->barrier("end"); // names a missing rank, which MPI_Finalize cannot
            return code;
        } catch (const std::exception& error) {
            return fail_job(&session.link(), error);
        }
    } catch (const std::exception& error) {
        return fail_job(nullptr, error);
    }
}

} // namespace rg::par
