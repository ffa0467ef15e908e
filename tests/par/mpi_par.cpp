// Runs the cases of ranks.h over MPI: mpiexec -n 1..4 ./mpi_par. Takes the options of doctest, such as -tc='ring*'.
// Returns 0, or prints a message per failure and returns another code.
//
//   --throw RANK STEP       the rank throws at the step; the job must end at once with a code other than 0
//   --mismatch RANK STEP    the rank sums another length; the job must end in the same way
//   --late RANK STEP        the rank stops answering; the deadline of the others (2 s) must end the job
//   --alone RANK STEP       like --late, while the others are in a call of the MPI library, which has no deadline
//   --stuck RANK BEFORE     the rank stops before MPI_Init (1) or after it (0); RG_DEADLINE_S must end the job

#define DOCTEST_CONFIG_IMPLEMENT
#define MPICH_SKIP_MPICXX 1
#define OMPI_SKIP_MPICXX 1
#include "par/session.h"
#include "tests/par/ranks.h"

#include <cstdlib>

#include <doctest/doctest.h>
#include <mpi.h>
#include <unistd.h>

using namespace rg;
using par::Group;
using par::Link;

namespace {

Link* job_link;

/// Makes one rank misbehave. An error or the end of the job must follow.
void misbehave(Group& group, std::string_view how, int odd, int64_t at) {
    std::vector<float> values(100'000, 1.0f);
    group.link().set_deadline(how == "--late" || how == "--alone" ? 2 : 60);
    for (int64_t step = 1; step < at + 3; ++step) {
        group.set_step(step);
        if (group.rank() == odd && step == at) {
            if (how == "--throw") fail("mpi_par: this rank was told to throw");
            if (how == "--late" || how == "--alone") sleep(60);
            values.resize(99'999);
        }
        if (how == "--alone" && step == at) group.link().open_shared(1000);
        group.allreduce_sum(values, "gradients");
    }
}

int run(Group& group, int argc, char** argv) {
    if (argc == 4) {
        misbehave(group, argv[1], std::atoi(argv[2]), std::atoi(argv[3]));
        return 0; // the fault was not detected, and the caller expects another code
    }
    job_link = &group.link();
    doctest::Context context(argc, argv);
    if (group.rank() > 0) context.setOption("minimal", true); // prints failures only
    return context.run();
}

} // namespace

// An exception ends the process, and so the job. Otherwise this rank would begin the next case without the others.
void par::on_ranks(const std::function<void(Link&)>& body) {
    [&]() noexcept { body(*job_link); }();
}

void par::on_nodes(const std::function<void(Link&)>& body) { on_ranks(body); }

int main(int argc, char** argv) {
    const char* const rank = std::getenv("PMI_RANK");
    if (argc == 4 && argv[1] == std::string_view("--stuck") && rank && rank == std::string_view(argv[2])) {
        if (argv[3] == std::string_view("0")) MPI_Init(&argc, &argv);
        sleep(60);
    }
    return par::run_ranks_main(argc, argv, [&](Group& group) { return run(group, argc, argv); });
}
