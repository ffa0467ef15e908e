// Describes training programs as objects, so that a sweep (models/sweep/trials.h) can check their arguments and run
// them.
#pragma once

#include "ringgrad/core/options.h"
#include "ringgrad/data/dataset.h"
#include "ringgrad/models/run/trial.h"
#include "ringgrad/par/group.h"

#include <array>
#include <functional>
#include <memory>

namespace rg {

/// The options of a training program, its data and its training. Each program has a class that derives from this one.
class Training {
public:
    virtual ~Training() = default;
    virtual void declare(Options& options) = 0;
    /// Collective. Loads the data that the options choose. Throws Error if the program cannot train on these data.
    /// `pulse`: see run_while_polling() in data_parallel.h.
    virtual data::TrainTest load(par::Group& group, const std::function<void()>& pulse) const = 0;
    /// Collective. Returns the exit code.
    virtual int train(Options& options, par::Group& group, Trial& trial) = 0;
};

struct Program {
    const char *name, *description;
    std::unique_ptr<Training> (*make)();
    /// The arguments of the two examples in --help.
    std::array<const char*, 2> examples{"--epochs 3", "--resume"};

    /// Parses the arguments of a command line, without the program's name, and returns the values of all options.
    /// Throws Error if a name is unknown or a value is bad.
    Json check(const std::vector<std::string>& args) const;
    /// Collective. Loads the data as a training with these arguments does. Throws Error if an argument is bad, or if
    /// the program cannot train on the data.
    data::TrainTest load(par::Group& group, const std::vector<std::string>& args) const;
    /// Collective. Trains on all ranks of the group. For --help, --help-all and --version, rank 0 prints the answer
    /// instead. Returns the exit code.
    int run(par::Group& group, const std::vector<std::string>& args, Trial& trial) const;
};

/// Makes a training for Program::make.
template <class T>
std::unique_ptr<Training> make_training() {
    return std::make_unique<T>();
}

/// Runs a training program from its main(), under MPI or alone. Returns the exit code.
int run_training_main(int argc, char** argv, const Program& program);

} // namespace rg
