// sweep_cifar: trains cifar_net at several depths, or with any other options, at the same time over the ranks; then
// tests the best.
//
// By default depths 1 to 4, each as wide as makes their costs alike: width round(16 / sqrt(depth)). A part of the
// training images is for choosing between them, and the test set for the chosen one alone. Read it from test_best()
// downwards; a trial is train_cifar itself, with other arguments (models/sweep/trials.h).
#include "core/atomic_file.h"
#include "core/context.h"
#include "core/cpu/cores.h"
#include "core/cpu/thread_pool.h"
#include "core/text.h"
#include "data/open.h"
#include "models/nets/cifar_net.h"
#include "models/nets/state_dict.h"
#include "models/run/confusion.h"
#include "models/run/load_data.h"
#include "models/sweep/programs.h"
#include "models/sweep/trials.h"
#include "par/session.h"
#include "par/thread_link.h"

#include <algorithm>
#include <cmath>
#include <iostream>

using namespace rg;

namespace {

struct SweepSettings {
    std::vector<std::string> sweep;
    TrialsOptions trials;
};

/// What trials start from, before the options that are given.
const std::vector<std::string> kDefaults = {"--batch-size=128", "--lr=0.05", "--epochs=30", kDefaultValidation};

void declare(Options& o, SweepSettings& s) {
    o.group("Trials");
    o.add("sweep", &s.sweep,
          "an option of train_cifar and its values, such as depth=1:4, lr=0.01,0.05 or 'drops=\"20,40\",30'; several "
          "make all combinations (none: depth=1:4)")
        .metavar("NAME=VALUES");
    s.trials.declare(o);
}

/// The width of a depth, unless the user says otherwise: about the same cost per image for all.
void choose_width(const Trials& trials, Settings& settings) {
    Json given = find_program("train_cifar").check(trials.base);
    for (const auto& [name, value] : settings)
        if (name == "width") return;
    for (const std::string& arg : trials.base)
        if (arg == "--width" || arg.starts_with("--width=")) return;
    std::string depth = given.at("depth").dump();
    for (const auto& [name, value] : settings)
        if (name == "depth") depth = value;
    settings.emplace_back("width", cat(std::lround(16 / std::sqrt(std::max(1.0, std::atof(depth.c_str()))))));
}

/// What a model sees in the whole test set, on this rank alone.
Score test(const std::string& model, const data::ImageSet& set) {
    const TensorFile file = load_tensors(model);
    CifarNet net(infer_network(file));
    load_state_dict(net.parameters, file);
    ThreadPool pool(available_cores());
    const Context context{.threads = &pool};
    const ContextScope scope(context);
    par::ThreadWorld world(1);
    par::Group alone(world.link(0));
    return evaluate(alone, {0, set.count}, set, data::kCifar10,
                    [&](const Tensor& x) { return net.forward(x, Mode::evaluate); });
}

void test_best(TrialsRun& run) {
    const RunFolder& folder = run.folder;
    const TrialRow* best = best_of(run.rows);
    RG_CHECK(best, "sweep_cifar: expected a trial with a validation accuracy, got none of ", run.rows.size(), "; ",
             folder.path(), "/results.csv says why");
    const std::string path = folder.path() + "/" + best->folder;
    const Json options = find_program(run.trials.program).check(arguments_of(run.trials, best->settings));
    const DataOptions data{.path = options.at("data").as_string(),
                           .cache = options.at("cache").as_string(),
                           .retries = options.at("retries").as_int(),
                           .unpacked_mib = options.at("unpacked-mib").as_int(),
                           .skip_other_images = options.at("skip-other-images").as_bool()};
    // Uses the trial's seed: if the test set is a part of one folder, the trial was trained on the rest.
    const data::ImageSet set = data::load(data.path, data.load_options(options.at("seed").as_int())).test;
    const Score score = test(path + "/model.safetensors", set);
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
    std::cout << "\nbest: trial " << best->number << " (" << printable(text_of(best->settings))
              << "), on the test set:\n"
              << confusion.text(size_t(set.count)) << "\n"
              << printable(folder.path()) << std::endl;
}

int sweep(par::Group& group, const TrialsArguments& arguments) {
    SweepSettings s;
    Trials trials{"train_cifar", kDefaults, {}, 1, {}};
    Options options("sweep_cifar", "trains networks for CIFAR-10 at the same time over the ranks, and tests the best");
    declare(options, s);
    options.pass_on(&trials.base,
                    "one of train_cifar, for all trials; here the defaults are --batch-size 128 --lr 0.05 "
                    "--epochs 30 --validation 0.1 (not 0), and width is round(16 / sqrt(depth))");
    if (!options.parse(arguments.texts)) {
        if (group.rank() == 0) std::cout << options.help();
        return 0;
    }
    if (s.trials.resume && !arguments.resumed) return sweep(group, s.trials.resumed("sweep_cifar", arguments.texts));
    trials.ranks_each = int(s.trials.ranks_per_trial);
    trials.rules = s.trials.rules;
    trials.table = trial_grid(s.sweep.empty() ? std::vector<std::string>{"depth=1:4"} : s.sweep);
    for (Settings& settings : trials.table) choose_width(trials, settings);
    return run_trials(group, "sweep_cifar", s.trials, options, arguments, trials, test_best);
}

} // namespace

int main(int argc, char** argv) {
    return par::run_ranks_main(argc, argv, [&](par::Group& group) {
        return sweep(group, {.texts = {argv + 1, argv + argc}});
    });
}
