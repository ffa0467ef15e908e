// sweep_cifar: trains networks with several depths, or with several values of other options, in parallel over the
// ranks.
//
// The default is depths 1 to 4, with width round(16 / sqrt(depth)), so that their costs are similar. A fraction of the
// training images is held out to choose the best network; only this network sees the test set. Each trial is a run of
// train_cifar with its own arguments (models/sweep/trials.h).
#include "ringgrad/models/programs.h"
#include "ringgrad/models/sweep/trials.h"

#include <cmath>

using namespace rg;

namespace {

/// Sets a trial's width from its depth, so that all trials cost about the same per image. Changes nothing if the user
/// has set the width, or has chosen a network without that option.
void choose_width(const Trials& trials, TrialSettings& settings) {
    const std::vector<std::string> arguments = arguments_of(trials, settings);
    for (const std::string& argument : arguments)
        if (argument == "--width" || argument.starts_with("--width=")) return;
    const Json options = trials.program->check(arguments);
    if (options.at("net").as_string() != "cifar") return; // other networks have no such option
    const int64_t depth = options.at("depth").as_int();
    settings.emplace_back("width", cat(std::lround(16 / std::sqrt(double(depth)))));
}

} // namespace

int main(int argc, char** argv) {
    return run_trials_main(argc, argv,
                           {.name = "sweep_cifar",
                            .description = "trains networks for CIFAR-10 with different options, and tests the best; "
                                           "without --width, it is round(16 / sqrt(depth))",
                            .programs = {&train_cifar},
                            .defaults = {"--batch-size=128", "--lr=0.05", "--epochs=30"},
                            .default_grid = {"depth=1:4"},
                            .adjust = choose_width});
}
