// See training_main.h.
#include "models/training_main.h"

#include "models/run/commands.h"
#include "models/sweep/trials.h"
#include "par/session.h"

#include <algorithm>

namespace rg {
namespace {

using Arguments = std::vector<std::string>;

/// A command of all training programs. `line` describes it in --help. `run` takes the program, a name for messages,
/// such as "train_cifar predict", and the arguments after the command.
struct Command {
    const char *name, *line;
    int (*run)(par::Group& group, const Program& program, const std::string& name, const Arguments& arguments);
};

int train(par::Group& group, const Program& program, const std::string& name, const Arguments& arguments);

template <auto function>
int without_program(par::Group& group, const Program&, const std::string& name, const Arguments& arguments) {
    return function(group, name, arguments);
}

constexpr Command kCommands[] = {
    {"train", "train a network; the same as no command", train},
    {"predict", "predict with a trained network, or test a run",
     [](par::Group& group, const Program& program, const std::string& name, const Arguments& arguments) {
         return predict_command(group, name, arguments, {&program});
     }},
    {"export", "write a trained network as an ONNX file", without_program<export_command>},
    {"sweep", "train with many settings, and test the best", sweep_command},
    {"inspect", "describe files, or sets of images", without_program<inspect_command>},
    {"help", "print the help of the command after it, or this", train},
};

int train(par::Group& group, const Program& program, const std::string&, const Arguments& arguments) {
    TrainingObserver observer;
    std::vector<std::pair<std::string, std::string>> commands;
    for (const Command& command : kCommands) commands.emplace_back(command.name, command.line);
    return program.run(group, arguments, observer, commands);
}

} // namespace

int run_training_main(int argc, char** argv, const Program& program) {
    return par::run_ranks_main(argc, argv, [&](par::Group& group) {
        Arguments words(argv + 1, argv + argc);
        if (!words.empty() && words[0] == "help") words.erase(words.begin()), words.emplace_back("--help");
        const auto* const command = std::ranges::find(kCommands, words.empty() ? "" : words[0], &Command::name);
        if (command == std::end(kCommands)) return train(group, program, program.name, words);
        return command->run(group, program, cat(program.name, " ", command->name), {words.begin() + 1, words.end()});
    });
}

} // namespace rg
