// The main() of predict, export_onnx and inspect, which are commands of the training programs (run/commands.h) for the
// networks of models/nets. Meson compiles it once for each of them, with RG_COMMAND as the function of the command.
#include "core/options.h"
#include "models/programs.h"
#include "models/run/commands.h"
#include "par/link.h"
#include "par/session.h"

#include <string_view>

using namespace rg;

/// Runs predict_command() for runs of the three training programs.
[[maybe_unused]] static int predict_any_command(par::Group& group, const std::string& name,
                                                const std::vector<std::string>& args) {
    return predict_command(group, name, args, {&train_cifar, &train_digits, &train_digits_angles});
}

static int run(par::Group& group, int argc, const char* const* argv) {
    return RG_COMMAND(group, RG_NAME, {argv + 1, argv + argc});
}

int main(int argc, char** argv) {
    if (std::string_view(RG_NAME) == "predict") // refuses several ranks, and only MPI knows their number
        return par::run_ranks_main(argc, argv, [&](par::Group& group) { return run(group, argc, argv); });
    return run_main(argc, argv, [](int n, const char* const* args) { // without MPI
        par::SingleLink link;
        par::Group alone(link);
        return run(alone, n, args);
    });
}
