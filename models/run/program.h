// Describes training programs as objects, so that a sweep (models/sweep/trials.h) can check their arguments and run
// them.
#pragma once

#include "ringgrad/core/options.h"
#include "ringgrad/data/dataset.h"
#include "ringgrad/models/run/task.h"
#include "ringgrad/models/run/trial.h"
#include "ringgrad/par/group.h"

#include <array>
#include <functional>
#include <memory>

namespace rg {

/// The result of a test of a model: its metrics as text and by name, and the members of the report, and tables of some
/// of these, by member.
struct TestResult {
    std::string text;
    Json values, report;
    std::vector<std::pair<std::string, Detail::Table>> tables = {};
};

/// The options of a training program, its data and its training. Each program has a class that derives from this one.
class Training {
public:
    virtual ~Training() = default;
    virtual void declare(Options& options) = 0;
    /// Collective. Loads the data that the options choose. Throws Error if the program cannot train on these data.
    /// `pulse`: see run_while_polling() in data_parallel.h.
    virtual data::TrainTest load(par::Group& group, const std::function<void()>& pulse) const = 0;
    /// Returns the metrics of a training on these images; the first one is the main one.
    virtual std::vector<MetricName> metrics(const data::ImageSet& images) const = 0;
    /// Collective. Tests a model (see load_model()) on the test set that the options choose, without --validation.
    virtual TestResult test(Options& options, par::Group& group, const std::string& model) = 0;
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
    /// The result of check_data() has warnings for users, and the metrics of the training.
    struct DataCheck {
        std::vector<std::string> warnings;
        std::vector<MetricName> metrics;
    };
    /// Collective. Loads the data as a training with these arguments does. Throws Error if an argument is bad, or if
    /// the program cannot train on the data.
    DataCheck check_data(par::Group& group, const std::vector<std::string>& args) const;
    /// Collective. Tests the model of a training with these arguments.
    TestResult test(par::Group& group, const std::vector<std::string>& args, const std::string& model) const;
    /// Collective. Trains on all ranks of the group. For --help, --help-all and --version, rank 0 prints the answer
    /// instead. Returns the exit code.
    int run(par::Group& group, const std::vector<std::string>& args, Trial& trial) const;
};

/// Makes a training for Program::make.
template <class T>
std::unique_ptr<Training> make_training() {
    return std::make_unique<T>();
}

} // namespace rg
