// The main() of a training program.
#pragma once

#include "models/run/training.h"

namespace rg {

/// Runs a training program from its main(), under MPI or alone. Returns the exit code. The first argument may be a
/// command, such as `predict`; --help lists the commands. Without a command, trains.
int run_training_main(int argc, char** argv, const Program& program);

} // namespace rg
