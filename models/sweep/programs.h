// The training programs, for their main() and for the programs that run many trainings (sweep_cifar, experiment).
//
// main() runs a program with a Trial that does nothing. A program of trials passes one that shows, judges and stops. To
// add a program: its object here, a row in programs.cpp, and its name in meson.build.
#pragma once

#include "models/run/program.h"

namespace rg {

extern const Program train_cifar, train_digits, train_digits_angles;

/// Throws Error, with all names, if there is no program of that name.
const Program& find_program(const std::string& name);

} // namespace rg
