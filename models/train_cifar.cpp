// train_cifar: trains cifar_net on CIFAR-10, on one process or on several MPI ranks.
//
// Read train(TrainingRun&, ...) first. Each rank holds the whole network and takes its share of every mini-batch;
// Trainer (models/run/trainer.h) has the loop and the steps. The images and their order do not depend on the number of
// ranks.
#include "ringgrad/core/profile.h"
#include "ringgrad/models/nets/cifar_net.h"
#include "ringgrad/models/run/data_parallel.h"
#include "ringgrad/models/run/memory.h"
#include "ringgrad/models/run/program.h"
#include "ringgrad/models/run/report.h"
#include "ringgrad/models/run/trainer.h"
#include "ringgrad/models/run/training_options.h"

using namespace rg;

namespace {

constexpr const char* kMemoryAdvice = "make --width, --depth or --batch-size smaller, or start fewer ranks";

struct TrainCifar final : Training, TrainingOptions {
    std::string drops = "45", partial = "discard";
    int64_t translate = 4;
    double smoothing = 0;
    bool nesterov = false, sync_bn = false, profile = false, plan_dump = false;
    CifarNet::Options network;
    data::Fill fill = data::Fill::zero;

    TrainCifar() {
        data_options.batch_size = 256;
        augment = "flip,translate";
        epochs = 50;
        l2 = 1e-10;
        schedule.kind = ScheduleKind::piecewise;
    }
    void declare(Options& o) override;
    data::TrainTest load(par::Group& group, const std::function<void()>& pulse) const override;
    int train(Options& options, par::Group& group, Trial& trial) override {
        TrainingRun run("train_cifar", run_options, options, group, trial);
        return run.supervise([&] { return train(run, options); });
    }
    int train(TrainingRun& run, const Options& options);
    void complete(const Options& options, const Workers& workers, bool resumed);
    data::LoaderOptions loader_options() const;
};

void TrainCifar::declare(Options& o) {
    data_options.declare(o, "CIFAR binary files or class folders of PNGs", "either",
                         "the embedded sample, where the defaults are --epochs 10 --drops 8, and --batch-size 50 for "
                         "any number of GPUs");
    o.add("partial-batch", &partial, "use of the last, smaller mini-batch of an epoch").one_of({"keep", "discard"});
    o.add("augment", &augment, "random augmentation of the images")
        .one_of({"flip,translate", "flip", "translate", "none"});
    o.add("translate", &translate, "largest translation, in pixels").range(0, 16);
    o.add("fill", &fill, {{"zero", data::Fill::zero}, {"reflect", data::Fill::reflect}},
          "how to fill pixels uncovered by translation");
    o.group("Network");
    o.add("width", &network.width, "channels of the first block").range(1, 4096);
    o.add("depth", &network.depth, "convolutions per block").range(1, 64);
    o.add("initializer", &network.init,
          {{"he", Init::he}, {"glorot", Init::glorot}, {"narrow-normal", Init::narrow_normal}},
          "distribution of the initial weights");
    declare_training(o, "0.1 x batch-size / 256", schedule_kinds());
    o.add("drops", &drops, "piecewise: epochs after which the rate drops").metavar("LIST");
    o.add("drop-factor", &schedule.factor, "piecewise: factor for the rate at each drop").at_least(1e-9);
    o.add("lr-floor", &schedule.floor, "cosine, triangular: lowest rate").at_least(0);
    o.add("lr-peak", &schedule.peak,
          "triangular: position of the highest rate, as a fraction of the training, above 0 and below 1")
        .range(0, 1);
    o.add("momentum", &momentum, "momentum of SGD").range(0, 1);
    o.add("nesterov", &nesterov, "use Nesterov momentum");
    o.add("label-smoothing", &smoothing, "fraction of the target spread over all classes").range(0, 0.99);
    machine_options.declare(o);
    o.add("sync-bn", &sync_bn,
          "batch norm with statistics over all ranks; up to rounding, the result then does not depend on their number");
    o.add("plan-dump", &plan_dump, "print the ops of the replayed step and the memory plan");
    o.add("profile", &profile, "print a table of time per op at the end");
    run_options.declare(o);
}

/// Sets the schedule, and the defaults that depend on other options. The default mini-batch grows with the number of
/// GPUs, except for the embedded sample. The default learning rate grows with the mini-batch.
void TrainCifar::complete(const Options& options, const Workers& workers, bool resumed) {
    int64_t& batch_size = data_options.batch_size;
    const bool small = data_options.path.empty() && !resumed; // a resumed run keeps its values
    if (!options.was_given("batch-size") && !resumed) batch_size = small ? 50 : workers.scaled(batch_size);
    if (small && !options.was_given("epochs")) epochs = 10;
    if (small && !options.was_given("drops")) drops = "8";
    if (schedule.base == 0) schedule.base = 0.1 * double(batch_size) / 256;
    schedule.epochs = double(epochs);
    schedule.drops = parse_drops(drops);
    schedule.check();
}

data::LoaderOptions TrainCifar::loader_options() const {
    const bool flips = augment.find("flip") != std::string::npos;
    const bool translates = augment.find("translate") != std::string::npos;
    data::LoaderOptions options = data_options.loader_options(
        {.flip = flips, .translate = translates ? translate : 0, .fill = fill}, data::kCifar10);
    options.keep_partial = partial == "keep";
    return options;
}

/// Returns the size of the values of all parameters, without allocating them.
int64_t parameter_bytes(const CifarNet::Options& size) {
    const DryRun without_memory;
    return CifarNet(size).parameters.values().bytes();
}

data::TrainTest TrainCifar::load(par::Group& group, const std::function<void()>& pulse) const {
    data::TrainTest sets = load_data(group, data_options.path, data_options.load_options(), pulse);
    data_options.hold_out_validation(sets, {32, 32, 3});
    return sets;
}

int TrainCifar::train(TrainingRun& run, const Options& options) {
    par::Group& group = run.group();
    Machine machine(machine_options, options, group);
    complete(options, machine.workers(), run.resumed());
    const data::TrainTest data = load(group, [&] { run.pulse(); });
    run.test_set_name = data_options.test_set_name();
    verify_same_data(group, data, run.test_set_name);

    Profile op_times;
    GroupSync sync(group);
    Context context = machine.context();
    if (sync_bn && group.size() > 1) context.sync = &sync;
    if (profile) context.profile = &op_times;
    const ContextScope scope(context);

    network.classes = int64_t(data.train.classes.size());
    network.seed = uint64_t(data_options.seed);
    if (!machine.device()) check_parameter_memory(group, parameter_bytes(network), kMemoryAdvice);
    CifarNet net(network);
    ImageFeed feed(data.train, loader_options(), machine);
    const Sgdm sgd{.momentum = float(momentum), .weight_decay = float(l2), .nesterov = nesterov};
    Trainer trainer(run, machine, net.parameters, sgdm(net.parameters, sgd), feed,
                    [&](const data::Batch& batch) -> ScoresAndLoss {
                        const Tensor scores = net.forward(batch.x, Mode::train);
                        return {scores, cross_entropy(scores, batch.labels, float(smoothing))};
                    });
    Evaluation test{run, machine, data.test, data::kCifar10,
                    [&](const Tensor& x) { return net.forward(x, Mode::evaluate); }};
    const TrainingRun::Length length = feed.length(steps, epochs);
    const Plan& plan = plan_ahead(trainer, test, kMemoryAdvice);

    run.begin(length, data.train.classes,
              cat(machine.text(), "; ", data.source, "; ", net.parameters.count(), " parameters, ", plan.bytes() >> 20,
                  " MiB planned"));
    if (plan_dump) run.note(plan.table() + trainer.gradient_sum.table(plan));
    run.report("network", report_network(net.parameters, &plan));
    int code = 0;
    const double seconds = seconds_of([&] {
        trainer.train(schedule, [&] { return test.score(); });
        code = run.end();
    });
    if (plan_dump)
        for (const auto& [name, f] : {std::pair("training", &trainer.train_step), {"evaluation", &test.predict}})
            run.note(cat("accelerate: ", f->occupancy() * double(f->cache_size), " plans of ", name, ", hit rate ",
                         100 * f->hit_rate(), " %"));
    // On a GPU, profiling waits for each op, so the training takes longer than without it. The table then omits the
    // total time.
    if (profile) run.note(op_times.table(machine.device() ? 0 : seconds));
    return code;
}

} // namespace

constinit const Program rg::train_cifar{"train_cifar",
                                        "trains a convolutional network on CIFAR-10, on one process or under mpiexec",
                                        []() -> std::unique_ptr<Training> { return std::make_unique<TrainCifar>(); }};
