// The training programs as objects, so that sweep_cifar and experiment can check their arguments and run them.
//
// A new program needs its object declared here, an entry in find_program(), and its file and name in the top
// meson.build.
#pragma once

#include "ringgrad/core/options.h"
#include "ringgrad/data/dataset.h"
#include "ringgrad/models/run/trial.h"
#include "ringgrad/par/group.h"

#include <functional>
#include <memory>

namespace rg {

/// The options of a training program, its data and its training. Each program has a class that derives from this one.
class Training {
public:
    virtual ~Training() = default;
    virtual void declare(Options& options) = 0;
    /// Collective. Loads the data that the options choose. Throws Error if the program cannot train on them. `pulse`:
    /// see load_data().
    virtual data::TrainTest load(par::Group& group, const std::function<void()>& pulse) const = 0;
    /// Collective. Returns the exit code.
    virtual int train(Options& options, par::Group& group, Trial& trial) = 0;
};

struct Program {
    const char *name, *description;
    std::unique_ptr<Training> (*make)();

    /// Parses the arguments of a command line, without the program's name, and returns all options. Throws Error if a
    /// name is unknown or a value is bad.
    Json check(const std::vector<std::string>& args) const;
    /// Collective. Loads the data as a training with these arguments does. Throws Error if the program cannot train on
    /// them.
    data::TrainTest load(par::Group& group, const std::vector<std::string>& args) const;
    /// Collective. Trains on all ranks of the group, or prints --help on rank 0. Returns the exit code.
    int run(par::Group& group, const std::vector<std::string>& args, Trial& trial) const;
};

extern const Program train_cifar, train_digits, train_digits_angles;

/// Returns the program with this name. Throws Error, with the names of all programs, if there is none.
const Program& find_program(const std::string& name);

} // namespace rg
