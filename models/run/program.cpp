// See program.h.
#include "models/run/program.h"

#include <iostream>

namespace rg {
namespace {

/// A training with its options as the arguments have them.
struct Parsed {
    Parsed(const Program& program, const std::vector<std::string>& args)
        : training(program.make()), options(program.name, program.description) {
        training->declare(options);
        complete = options.parse(args);
    }
    std::unique_ptr<Training> training;
    Options options;
    bool complete; // false: help was asked for
};

} // namespace

Json Program::check(const std::vector<std::string>& args) const { return Parsed(*this, args).options.to_json(); }

void Program::check_data(par::Group& group, const std::vector<std::string>& args) const {
    Parsed(*this, args).training->load(group, {});
}

int Program::run(par::Group& group, const std::vector<std::string>& args, Trial& trial) const {
    Parsed parsed(*this, args);
    if (parsed.complete) return parsed.training->train(parsed.options, group, trial);
    if (group.rank() == 0) std::cout << parsed.options.help();
    return 0;
}

} // namespace rg
