// See program.h.
#include "ringgrad/models/run/program.h"

#include <iostream>

namespace rg {
namespace {

/// A training, and its options with the values of the arguments.
struct Parsed {
    Parsed(const Program& program, const std::vector<std::string>& args)
        : training(program.make()), options(program.name, program.description) {
        options.examples({program.examples.begin(), program.examples.end()}, "mpiexec -n 4 ");
        training->declare(options);
        wants_training = options.parse(args);
    }
    std::unique_ptr<Training> training;
    Options options;
    bool wants_training; // false for --help, --help-all and --version
};

} // namespace

Json Program::check(const std::vector<std::string>& args) const { return Parsed(*this, args).options.to_json(); }

Program::DataCheck Program::check_data(par::Group& group, const std::vector<std::string>& args) const {
    const Parsed parsed(*this, args);
    const data::TrainTest data = parsed.training->load(group, {});
    return {data.warnings, parsed.training->metrics(data.train)};
}

TestResult Program::test(par::Group& group, const std::vector<std::string>& args, const std::string& model) const {
    Parsed parsed(*this, args);
    return parsed.training->test(parsed.options, group, model);
}

int Program::run(par::Group& group, const std::vector<std::string>& args, Trial& trial) const {
    Parsed parsed(*this, args);
    if (parsed.wants_training) return parsed.training->train(parsed.options, group, trial);
    if (group.rank() == 0) std::cout << parsed.options.answer();
    return 0;
}

} // namespace rg
