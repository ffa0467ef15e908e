// sweep_cifar: trains networks with several depths, or with several values of other options, in parallel over the
// ranks. Then it tests the best network, unless the sweep was stopped.
//
// The default is depths 1 to 4, with width round(16 / sqrt(depth)), so that their costs are similar. A fraction of the
// training images is held out to choose the best network; only this network sees the test set. Each trial is a run of
// train_cifar with its own arguments (models/sweep/trials.h).
#include "ringgrad/core/atomic_file.h"
#include "ringgrad/core/cpu/cpu_scope.h"
#include "ringgrad/core/text.h"
#include "ringgrad/models/nets/networks.h"
#include "ringgrad/models/programs.h"
#include "ringgrad/models/run/confusion.h"
#include "ringgrad/models/run/model_file.h"
#include "ringgrad/models/sweep/trials.h"

#include <algorithm>
#include <cmath>
#include <iostream>

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

/// Tests a model on the whole set, on this rank alone.
Score test(par::Group& alone, const std::string& model, const data::ImageSet& set) {
    const TensorFile file = load_tensors(model);
    const std::unique_ptr<Network> network = make_network(file);
    const CpuScope all_cores;
    return evaluate(alone, {0, set.count}, set, stored_normalise(file, data::kCifar10),
                    [&](const Tensor& x) { return network->forward(x, Mode::evaluate); });
}

void test_best(TrialsRun& run) {
    const RunFolder& folder = run.folder;
    const std::vector<const TrialRow*> ranked = best_first(run.rows, run.trials.ranking);
    RG_CHECK(!ranked.empty(), "sweep_cifar: expected a trial with the metric ", run.trials.ranking.metric,
             ", got none of ", run.rows.size(), "; see ", folder.path(), "/results.csv");
    const TrialRow* best = ranked.front();
    const std::string path = folder.path() + "/" + best->folder;
    par::SingleLink link;
    par::Group alone(link);
    // Load with the trial's --seed. If the data have no test set, the seed chooses the test images. So this set has the
    // same test images that the trial left out.
    std::vector<std::string> arguments = arguments_of(run.trials, best->settings);
    arguments.push_back("--validation=0");
    const data::ImageSet set = run.trials.program->load(alone, arguments).test;
    const Score score = test(alone, path + "/model.safetensors", set);
    const Confusion confusion(set, score.predictions);
    write_file_atomic(folder.path() + "/confusion.csv", confusion.csv());
    write_file_atomic(folder.path() + "/best.json", Json::object()
                                                            .set("trial", best->number)
                                                            .set("validation_accuracy", best->accuracy())
                                                            .set("test_accuracy", confusion.accuracy())
                                                            .set("folder", path)
                                                            .dump(2) +
                                                        "\n");
    run.report.set("confusion", report_confusion(set, score.predictions));
    run.report.write("done");
    std::cout << "\nbest: trial " << best->number << " (" << printable(settings_text(best->settings))
              << "), on the test set:\n"
              << confusion.text(size_t(set.count)) << "\n"
              << "report: " << printable(folder.path()) << "/report.html" << std::endl;
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
                            .adjust = choose_width,
                            .finish = test_best});
}
