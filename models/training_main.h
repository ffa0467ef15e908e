// The main() of a training program.
#pragma once

#include "models/run/training.h"

namespace rg {

/// Runs a training program from its main(), under MPI or alone. Returns the exit code. The first argument may be a
/// command, for the networks of this program; training_main.cpp lists them, and so does --help. Without one, trains.
int run_training_main(int argc, char** argv, const Program& program);

} // namespace rg
