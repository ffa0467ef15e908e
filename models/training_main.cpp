// See training_main.h.
#include "ringgrad/models/training_main.h"

#include "ringgrad/models/run/commands.h"
#include "ringgrad/models/sweep/trials.h"
#include "ringgrad/par/session.h"

namespace rg {

int run_training_main(int argc, char** argv, const Program& program) {
    const std::string command = argc > 1 ? argv[1] : "", name = cat(program.name, " ", command);
    if (command == "sweep")
        return run_trials_main(argc - 1, argv + 1,
                               {.name = cat(program.name, "-sweep"),
                                .command = name,
                                .description = cat("sweeps: ", program.description),
                                .program = &program});
    return par::run_ranks_main(argc, argv, [&](par::Group& group) {
        const std::vector<std::string> args(argv + 1, argv + argc);
        if (command == "predict") return predict_command(group, name, {args.begin() + 1, args.end()}, {&program});
        if (command == "export") return export_command(name, {args.begin() + 1, args.end()});
        TrainingObserver observer;
        return program.run(group, args, observer);
    });
}

} // namespace rg
