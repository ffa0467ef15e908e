// train_cifar: trains cifar_net on CIFAR-10, on one process or on several MPI ranks.
//
// Read train() downwards, then the loop in train_epochs(). Each rank holds the whole network and takes its share of
// every mini-batch; Trainer (models/run/trainer.h) makes a step of it. The images that the network sees, and their
// order, do not depend on the number of ranks.
#include "core/profile.h"
#include "core/schedule.h"
#include "models/nets/cifar_net.h"
#include "models/run/data_parallel.h"
#include "models/run/load_data.h"
#include "models/run/machine.h"
#include "models/run/memory.h"
#include "models/run/report.h"
#include "models/run/trainer.h"
#include "models/sweep/programs.h"

using namespace rg;

namespace {

constexpr const char* kMemoryAdvice = "make --width, --depth or --batch-size smaller, or start fewer ranks";

struct Settings final : Training {
    DataOptions data;
    std::string drops = "45", augment = "flip,translate", shuffle = "epoch", partial = "discard";
    int64_t epochs = 50, batch_size = 256, seed = 0, translate = 4, steps = -1;
    double momentum = 0.9, l2 = 1e-10, smoothing = 0;
    bool nesterov = false, sync_bn = false, profile = false, plan_dump = false;
    Schedule schedule{.kind = ScheduleKind::piecewise, .base = 0};
    CifarNet::Options network;
    data::Fill fill = data::Fill::zero;
    MachineOptions machine;
    RunOptions run;

    void declare(Options& options) override;
    data::TrainTest load(par::Group& group, const std::function<void()>& pulse) const override;
    int train(Options& options, par::Group& group, Trial& trial) override;
};

void declare(Options& o, Settings& s) {
    s.data.declare(o, "CIFAR binary files, or of PNG class folders", "them", "the embedded sample");
    o.add("batch-size", &s.batch_size, "images per step, over all ranks (the sample: 50 if not given)").range(1, 1e6);
    o.add("partial-batch", &s.partial, "a last batch that is smaller").one_of({"keep", "discard"});
    o.add("shuffle", &s.shuffle, "a new order every epoch, or file order").one_of({"epoch", "never"});
    o.add("augment", &s.augment, "random views").one_of({"flip,translate", "flip", "translate", "none"});
    o.add("translate", &s.translate, "pixels of translation, at most").range(0, 16);
    o.add("fill", &s.fill, {{"zero", data::Fill::zero}, {"reflect", data::Fill::reflect}}, "what translation uncovers");
    o.group("Network");
    o.add("width", &s.network.width, "channels of the first block").range(1, 4096);
    o.add("depth", &s.network.depth, "convolutions per block").range(1, 64);
    o.add("initializer", &s.network.init,
          {{"he", Init::he}, {"glorot", Init::glorot}, {"narrow-normal", Init::narrow_normal}}, "initial weights");
    o.add("seed", &s.seed, "of everything that is random").at_least(0);
    o.group("Training");
    o.add("epochs", &s.epochs, "passes over the data (the sample: 10 if not given)").range(1, 1e6);
    o.add("steps", &s.steps, "stop after so many steps in all; -1: after the epochs").at_least(-1);
    o.add("lr", &s.schedule.base, "learning rate; 0: 0.1 x batch-size / 256").at_least(0);
    o.add("schedule", &s.schedule.kind, schedule_kinds(), "learning rate over the training");
    o.add("drops", &s.drops, "piecewise: epochs after which the rate drops (the sample: 8)").metavar("LIST");
    o.add("drop-factor", &s.schedule.factor, "piecewise: what it is multiplied by").at_least(1e-9);
    o.add("lr-floor", &s.schedule.floor, "cosine, triangular: the lowest rate").at_least(0);
    o.add("lr-peak", &s.schedule.peak, "triangular: where the peak is, as a part of the training").range(0, 1);
    o.add("momentum", &s.momentum, "of SGD").range(0, 1);
    o.add("nesterov", &s.nesterov, "Nesterov's momentum");
    o.add("l2", &s.l2, "weight decay, on all parameters").at_least(0);
    o.add("label-smoothing", &s.smoothing, "part of the target spread over all classes").range(0, 0.99);
    s.machine.declare(o);
    o.add("sync-bn", &s.sync_bn, "batch statistics over all ranks: the result does not depend on their number");
    o.add("plan-dump", &s.plan_dump, "print the steps that are replayed, and where their values lie");
    o.add("profile", &s.profile, "end with a table of time per op");
    s.run.declare(o);
}

/// Sets the defaults and the schedule, which depend on other options. A mini-batch grows with the GPUs that work on it,
/// and the learning rate with the mini-batch.
void complete(Settings& s, const Options& options, const Workers& workers, bool resumed) {
    const bool small = s.data.path.empty() && !resumed; // a resumed run has its own values
    if (!options.was_given("batch-size") && !resumed) s.batch_size = small ? 50 : workers.scaled(s.batch_size);
    if (small && !options.was_given("epochs")) s.epochs = 10;
    if (small && !options.was_given("drops")) s.drops = "8";
    if (s.schedule.base == 0) s.schedule.base = 0.1 * double(s.batch_size) / 256;
    s.schedule.epochs = double(s.epochs), s.schedule.drops = parse_drops(s.drops);
    s.schedule.check();
}

data::LoaderOptions loader_options(const Settings& s) {
    const bool flip = s.augment.find("flip") != std::string::npos;
    const bool translate = s.augment.find("translate") != std::string::npos;
    return {.batch_size = s.batch_size,
            .shuffle = s.shuffle == "epoch",
            .keep_partial = s.partial == "keep",
            .seed = uint64_t(s.seed),
            .augment = {.flip = flip, .translate = translate ? s.translate : 0, .fill = s.fill},
            .normalise = data::kCifar10};
}

/// Bytes of the values of all parameters.
int64_t parameter_bytes(const CifarNet::Options& size) {
    const DryRun without_memory;
    return CifarNet(size).parameters.values().bytes();
}

void Settings::declare(Options& o) { ::declare(o, *this); }

data::TrainTest Settings::load(par::Group& group, const std::function<void()>& pulse) const {
    data::TrainTest sets = load_data(group, data.path, data.load_options(seed), pulse);
    RG_CHECK(sets.train.height == 32 && sets.train.width == 32 && sets.train.channels == 3,
             "train_cifar: expected images of 32 x 32 x 3, got ", sets.train.height, " x ", sets.train.width, " x ",
             sets.train.channels, " in ", sets.source);
    data.hold_out_validation(sets, seed);
    return sets;
}

int train_epochs(TrainingRun& run, Trainer& trainer, const Schedule& schedule, Evaluation& test) {
    while (run.goes_on()) {
        trainer.begin_epoch();
        while (run.epoch_goes_on()) {
            const data::Batch batch = trainer.next_batch();
            const StepResult result = trainer.step(batch, schedule.rate_at(run.epochs()));
            run.step(result);
        }
        if (run.epoch_is_complete()) run.end_epoch(test.score());
        run.save();
    }
    return run.end();
}

int train(TrainingRun& run, Settings& s, Options& options, par::Group& group) {
    Machine machine(s.machine, options, group);
    complete(s, options, machine.workers(), run.resumed());
    const data::TrainTest data = s.load(group, [&] { run.pulse(); });
    run.tested = s.data.tested();
    verify_same_data(group, data, run.tested);

    Profile profile;
    GroupSync sync(group);
    Context context = machine.context();
    if (s.sync_bn && group.size() > 1) context.sync = &sync;
    if (s.profile) context.profile = &profile;
    const ContextScope scope(context);

    s.network.classes = int64_t(data.train.classes.size()), s.network.seed = uint64_t(s.seed);
    if (!machine.device()) check_parameter_memory(group, parameter_bytes(s.network), kMemoryAdvice);
    CifarNet net(s.network);
    ImageFeed feed(data.train, loader_options(s), machine);
    const Sgdm sgd{.momentum = float(s.momentum), .weight_decay = float(s.l2), .nesterov = s.nesterov};
    Trainer trainer(run, machine, net.parameters, sgdm(net.parameters, sgd), feed,
                    [&](const data::Batch& batch) -> ScoresAndLoss {
                        const Tensor scores = net.forward(batch.x, Mode::train);
                        return {scores, cross_entropy(scores, batch.labels, float(s.smoothing))};
                    });
    Evaluation test{run, machine, data.test, data::kCifar10,
                    [&](const Tensor& x) { return net.forward(x, Mode::evaluate); }};
    const TrainingRun::Length length = feed.length(s.steps, s.epochs);
    const Plan& plan = plan_ahead(trainer, test, kMemoryAdvice);

    run.begin(length, data.train.classes,
              cat(machine.text(), "; ", data.source, "; ", net.parameters.count(), " parameters, ", plan.bytes() >> 20,
                  " MiB planned"));
    if (s.plan_dump) run.note(plan.table() + trainer.gradient_sum.table(plan));
    run.report("network", report_network(net.parameters, &plan));
    int code = 0;
    const double seconds = seconds_of([&] { code = train_epochs(run, trainer, s.schedule, test); });
    if (s.plan_dump)
        for (const auto& [name, f] : {std::pair("training", &trainer.train_step), {"evaluation", &test.predict}})
            run.note(cat("accelerate: ", f->occupancy() * double(f->cache_size), " plans of ", name, ", hit rate ",
                         100 * f->hit_rate(), " %"));
    // A GPU's ops are timed one by one, which takes longer than a replay: there is no total to compare with.
    if (s.profile) run.note(profile.table(machine.device() ? 0 : seconds));
    return code;
}

int Settings::train(Options& options, par::Group& group, Trial& trial) {
    TrainingRun training("train_cifar", run, options, group, trial,
                         {"batch-size", "validation", "partial-batch", "shuffle", "seed", "augment", "translate",
                          "fill", "width", "depth", "init", "initializer"});
    return training.attempt([&] { return ::train(training, *this, options, group); });
}

} // namespace

constinit const Program rg::train_cifar{"train_cifar",
                                        "trains a convolutional network on CIFAR-10, alone or under mpiexec",
                                        []() -> std::unique_ptr<Training> { return std::make_unique<Settings>(); }};
