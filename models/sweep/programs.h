// Training programs as functions, for the programs that run many trainings (sweep_cifar, experiment).
//
// A training program's main() calls its function with a Trial that does nothing; whoever runs trials hands it one that
// shows, judges and stops. To add a program: its three functions here, and a row in programs.cpp.
#pragma once

#include "models/run/trial.h"
#include "par/group.h"

namespace rg {

struct Program {
    const char* name;
    /// The options that the arguments (of a command line, without the program's name) amount to. Error: unknown names,
    /// bad values.
    Json (*check)(const std::vector<std::string>& args);
    /// Reads the data as a training would, and drops them. Collective. Error: what is wrong with them.
    void (*check_data)(par::Group& group, const std::vector<std::string>& args);
    /// Trains on all ranks of the group; gives the exit code.
    int (*run)(par::Group& group, const std::vector<std::string>& args, Trial& trial);
};

/// Error, with all names, if there is none of that name.
const Program& find_program(const std::string& name);

#define RG_PROGRAM(name)                                                                                               \
    Json check_##name(const std::vector<std::string>& args);                                                           \
    void check_data_##name(par::Group& group, const std::vector<std::string>& args);                                   \
    int name(par::Group& group, const std::vector<std::string>& args, Trial& trial);
RG_PROGRAM(train_cifar)
RG_PROGRAM(train_digits)
RG_PROGRAM(train_digits_angles)
#undef RG_PROGRAM

} // namespace rg
