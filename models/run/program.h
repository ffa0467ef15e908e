// A training program as an object: what all of them do around the training itself.
#pragma once

#include "core/options.h"
#include "data/dataset.h"
#include "models/run/trial.h"
#include "par/group.h"

#include <functional>
#include <memory>

namespace rg {

/// The settings of a training program, its data and its training.
class Training {
public:
    virtual ~Training() = default;
    virtual void declare(Options& options) = 0;
    /// Collective. Throws Error if the data cannot be trained on. `pulse`: see load_data().
    virtual data::TrainTest load(par::Group& group, const std::function<void()>& pulse) const = 0;
    /// Collective. Returns the exit code.
    virtual int train(Options& options, par::Group& group, Trial& trial) = 0;
};

struct Program {
    const char *name, *description;
    std::unique_ptr<Training> (*make)();

    /// Returns the options that the arguments (of a command line, without the program's name) amount to. Throws Error
    /// if a name is unknown or a value is bad.
    Json check(const std::vector<std::string>& args) const;
    /// Collective. Reads the data as a training would, and drops them. Throws Error if they cannot be trained on.
    void check_data(par::Group& group, const std::vector<std::string>& args) const;
    /// Trains on all ranks of the group, or prints the help. Returns the exit code.
    int run(par::Group& group, const std::vector<std::string>& args, Trial& trial) const;
};

} // namespace rg
