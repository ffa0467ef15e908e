// train_cifar: trains cifar_net on CIFAR-10, on one process or on several MPI ranks.
//
// Read it from main() upwards or from train() downwards: the loop is all there is. Each rank holds the whole network
// and takes its share of every mini-batch; gradients, loss and batch-norm state are summed over the ranks by share.
// What the network sees, and in which order, does not depend on the number of ranks.
#include "core/accelerate.h"
#include "core/profile.h"
#include "core/schedule.h"
#include "core/tape.h"
#include "data/loader.h"
#include "models/nets/cifar_net.h"
#include "models/run/data_parallel.h"
#include "models/run/gradient_sum.h"
#include "models/run/load_data.h"
#include "models/run/machine.h"
#include "models/run/memory.h"
#include "models/run/phase_clock.h"
#include "models/run/report.h"
#include "models/run/training_run.h"
#include "models/sweep/programs.h"
#include "par/session.h"

#include <array>
#include <iostream>

using namespace rg;

namespace {

struct Settings {
    DataOptions data;
    std::string drops = "45", augment = "flip,translate", shuffle = "epoch", partial = "discard";
    int64_t epochs = 50, batch_size = 256, width = 32, depth = 4, seed = 0, translate = 4, steps = -1;
    double lr = 0, momentum = 0.9, l2 = 1e-10, drop_factor = 0.1, lr_floor = 0, lr_peak = 0.3, smoothing = 0;
    bool nesterov = false, sync_bn = false, profile = false, plan_dump = false;
    ScheduleKind schedule = ScheduleKind::piecewise;
    Init initializer = Init::he;
    data::Fill fill = data::Fill::zero;
    MachineOptions machine;
    RunOptions run;
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
    o.add("width", &s.width, "channels of the first block").range(1, 4096);
    o.add("depth", &s.depth, "convolutions per block").range(1, 64);
    o.add("initializer", &s.initializer,
          {{"he", Init::he}, {"glorot", Init::glorot}, {"narrow-normal", Init::narrow_normal}}, "initial weights");
    o.add("seed", &s.seed, "of everything that is random").at_least(0);
    o.group("Training");
    o.add("epochs", &s.epochs, "passes over the data (the sample: 10 if not given)").range(1, 1e6);
    o.add("steps", &s.steps, "stop after so many steps in all; -1: after the epochs").at_least(-1);
    o.add("lr", &s.lr, "learning rate; 0: 0.1 x batch-size / 256").at_least(0);
    o.add("schedule", &s.schedule, schedule_names(), "learning rate over the training");
    o.add("drops", &s.drops, "piecewise: epochs after which the rate drops (the sample: 8)").metavar("LIST");
    o.add("drop-factor", &s.drop_factor, "piecewise: what it is multiplied by").at_least(1e-9);
    o.add("lr-floor", &s.lr_floor, "cosine, triangular: the lowest rate").at_least(0);
    o.add("lr-peak", &s.lr_peak, "triangular: where the peak is, as a part of the training").range(0, 1);
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

/// Defaults that depend on other options.
void complete(Settings& s, const Options& options) {
    const bool small = s.data.path.empty() && !s.run.resume; // a resumed run has what it had
    if (small && !options.given("batch-size")) s.batch_size = 50;
    if (small && !options.given("epochs")) s.epochs = 10;
    if (small && !options.given("drops")) s.drops = "8";
    if (s.lr == 0) s.lr = 0.1 * double(s.batch_size) / 256;
}

data::LoaderOptions loader_options(const Settings& s, const Workers& workers, bool views) {
    const bool flip = s.augment.find("flip") != std::string::npos;
    const bool translate = s.augment.find("translate") != std::string::npos;
    return {.batch_size = s.batch_size,
            .shuffle = s.shuffle == "epoch",
            .keep_partial = s.partial == "keep",
            .seed = uint64_t(s.seed),
            .augment = {.flip = flip, .translate = translate ? s.translate : 0, .fill = s.fill},
            .normalise = data::kCifar10,
            .rank = workers.place,
            .ranks = workers.count,
            .views = views};
}

data::TrainTest load(const Settings& s, par::Group& group, const std::function<void()>& pulse) {
    data::TrainTest data = load_data(group, s.data.path, s.data.load_options(s.seed), pulse);
    RG_CHECK(data.train.height == 32 && data.train.width == 32 && data.train.channels == 3,
             "train_cifar: expected images of 32 x 32 x 3, got ", data.train.height, " x ", data.train.width, " x ",
             data.train.channels, " in ", data.source);
    s.data.hold_out_validation(data, s.seed);
    return data;
}

/// Of the values alone.
int64_t parameter_bytes(const CifarNet::Options& size) {
    const DryRun without_memory;
    return CifarNet(size).parameters.values().bytes();
}

int train(TrainingRun& run, Settings& s, Options& options, par::Group& group, Trial& trial) {
    Machine machine(s.machine, options, group);
    // A mini-batch grows with the GPUs that work on it, and the learning rate with the mini-batch.
    const Workers& workers = machine.workers();
    if (!options.given("batch-size") && !s.data.path.empty() && !run.resumed())
        s.batch_size = workers.scaled(s.batch_size);
    complete(s, options);

    const data::TrainTest data = load(s, group, [&] { trial.pulse(); });
    run.tested = s.data.tested();
    verify_same_data(group, data.train, "training set");
    verify_same_data(group, data.test, run.tested + " set");

    Profile profile;
    GroupSync sync(group);
    Context context = machine.context();
    if (s.sync_bn && group.size() > 1) context.sync = &sync;
    if (s.profile) context.profile = &profile;
    const ContextScope scope(context);

    const CifarNet::Options size{.width = s.width,
                                 .depth = s.depth,
                                 .classes = int64_t(data.train.classes.size()),
                                 .seed = uint64_t(s.seed),
                                 .init = s.initializer};
    // Memory that is not there is told before it is taken: values, gradients (also those that ranks share) and
    // momentum, and on rank 0 a checkpoint; below, the plans.
    const char* const advice = "make --width, --depth or --batch-size smaller, or start fewer ranks";
    const int64_t checkpoint = group.rank() == 0 ? checkpoint_memory(parameter_bytes(size)) : 0;
    if (!machine.device())
        check_memory(group, (group.size() > 1 ? 4 : 3) * parameter_bytes(size) + checkpoint, "parameters", advice);
    CifarNet net(size);
    Parameters& parameters = net.parameters;
    if (group.size() > 1 && !machine.device())
        parameters.place_gradients(group.memory(size_t(parameters.gradient_bytes()), "gradients").data());
    const OptimizerState optimizer{{"optimizer.velocity", Tensor::zeros(parameters.values().shape())}};
    Position at = run.restore(parameters, optimizer);

    // A device has all training images, and makes the views of them; the loader only says which.
    const bool on_device = machine.device() != nullptr;
    data::Loader loader(data.train, loader_options(s, workers, on_device));
    const Tensor images = on_device ? data::resident(data.train) : Tensor();
    const Tensor statistics = loader.augmenter().statistics();

    // The update: of no effect if gradients or loss are not finite, of which run.judge() hears afterwards.
    const Tensor rate = Tensor::zeros({1}), loss_of_all = Tensor::zeros({}), found = Tensor::zeros({}, DType::i32);
    const auto update = [&](const Tensor& loss) {
        first_non_finite(parameters.gradients(), loss, found);
        sgdm_update(parameters.values(), optimizer[0].value, parameters.gradients(),
                    {.momentum = float(s.momentum), .weight_decay = float(s.l2), .nesterov = s.nesterov}, rate, found);
    };

    // What is computed: scores of images; in training also the loss and the gradients, and the update unless it has to
    // wait for the gradients of others. Traced at the first call with a batch of some size, and replayed from then on.
    const std::vector<Tensor> values = parameters.value_list(), gradients = parameters.gradient_list();
    Accelerated network([&](std::span<const Tensor> in, bool training) -> std::vector<Tensor> {
        const Tensor x = training && on_device ? augment(images, in[0], in[1], statistics,
                                                         {32, 32, s.fill == data::Fill::reflect, machine.activations()})
                                               : cast(in[0], machine.activations());
        if (!training) return {net.forward(x, Mode::evaluate)};
        Tape tape;
        const Tensor scores = net.forward(x, Mode::train);
        const Tensor loss = cross_entropy(scores, in.back(), float(s.smoothing));
        tape.gradients(loss, values, gradients);
        if (group.size() == 1) update(loss);
        return {scores, loss};
    });
    network.enabled = s.machine.accelerate;
    // On one machine the sum is over before a thread that waits for it pays; between machines there is time to hide.
    const bool overlap = group.local_size() < group.size() && !s.sync_bn;
    GradientSum gradient_sum(group, parameters, s.machine.allreduce, overlap);
    network.after_step = [&](const Plan& plan, size_t step) { return gradient_sum.after_step(plan, step); };

    RG_CHECK(loader.batches() > 0, "train_cifar: ", data.train.count, " training images are less than a mini-batch of ",
             s.batch_size, "; make --batch-size smaller or use --partial-batch keep");
    const Schedule schedule{s.schedule,    s.lr,       double(s.epochs), parse_drops(s.drops),
                            s.drop_factor, s.lr_floor, s.lr_peak};
    schedule.check();
    const TrainingRun::Length length{s.steps >= 0 ? s.steps : s.epochs * loader.batches(), loader.batches()};

    // Plans for the batches to come, so that the memory they take is known, and had, before the first step.
    const data::Range tested = workers.share_of(data.test.count);
    const auto plan_ahead = [&]() -> const Plan& {
        for (const int64_t n : {std::min(kEvaluationBatch, tested.size()), tested.size() % kEvaluationBatch})
            if (s.machine.accelerate && n > 0) network.plan({Tensor::on_host({n, 32, 32, 3})}, false);
        const int64_t share = workers.share_of(std::min(s.batch_size, data.train.count)).size();
        const Tensor labels = Tensor::on_host({share}, DType::i32);
        if (!on_device) return network.plan({Tensor::on_host({share, 32, 32, 3}), labels}, true);
        return network.plan({Tensor::on_host({share}, DType::i32), Tensor::on_host({share, 3}, DType::i32), labels},
                            true);
    };
    if (!on_device) check_planned_memory(group, {&network}, parameters, plan_ahead, advice);
    const Plan& plan = plan_ahead();

    run.begin(at, length, data.train.classes,
              cat(machine.text(), "; ", data.source, "; ", parameters.count(), " parameters, ", plan.bytes() >> 20,
                  " MiB planned"));
    if (s.plan_dump) run.note(plan.table() + gradient_sum.table(plan));
    run.report("network", report_network(parameters, &plan));
    using Clock = std::chrono::steady_clock;
    PhaseClock phases;
    const Clock::time_point begin = Clock::now();

    bool stop = false;
    while (at.step < length.steps && !stop) {
        run.begin_epoch(at);
        stop = !group.all(!run.asked_to_stop(), "go on");
        loader.start(at.epoch, at.batch);
        bool all_have_data = group.all(loader.has_next(), "has data");
        int64_t own_images = 0, own_steps = 0;
        phases.start();
        while (at.step < length.steps && !stop && all_have_data) {
            const data::Batch batch = loader.next();
            const int64_t samples = batch.labels.extent(0);
            own_images += samples, ++own_steps;
            phases.lap(PhaseClock::data);
            group.set_step(at.step + 1);
            sync.samples = batch.global_size;
            sync.share = double(samples) / double(batch.global_size);

            // Forward, backward, and the sum over the ranks.
            const double lr = schedule.at(double(at.epoch - 1) + double(at.batch) / double(loader.batches()));
            rate.fill(lr);
            gradient_sum.begin(sync.share);
            const std::span<const Tensor> result = on_device ? network({batch.indices, batch.views, batch.labels}, true)
                                                             : network({batch.x, batch.labels}, true);
            ++parameters.batches_tracked;
            phases.lap(PhaseClock::compute);
            gradient_sum.finish(); // first: what is read next, a device has to be done for
            std::array here{result[0], result[1], found};
            to_host(here);
            const Tensor &scores = here[0], &loss = here[1];
            phases.lap(on_device ? PhaseClock::compute : PhaseClock::sum);

            // Over all ranks: loss and accuracy, whether anyone was asked to stop, or has no more data; and the running
            // statistics, in the same message.
            double sums[] = {samples ? sync.share * double(loss.data<float>()[0]) : 0.0,
                             double(count_correct(scores, batch.labels)), double(run.asked_to_stop()),
                             loader.has_next() ? 0.0 : 1.0};
            if (s.sync_bn)
                group.allreduce_sum(std::span<double>(sums), "loss");
            else
                aggregate_state(group, parameters, sync.share, sums);
            phases.lap(PhaseClock::sum);
            stop = sums[2] > 0, all_have_data = sums[3] == 0;

            if (group.size() > 1) loss_of_all.fill(sums[0]), update(loss_of_all);
            if (run.judge(at, sums[0], group.size() > 1 ? found : here[2]) == Verdict::rolled_back) break;
            phases.lap(PhaseClock::update);

            run.step(at, {batch.global_size, sums[0], sums[1], lr});
            if (run.due(at)) run.save_checkpoint(at, parameters, optimizer);
            phases.lap(PhaseClock::other);
        }

        Score test;
        if (at.batch == loader.batches()) { // else stopped on the way: `at` is where to go on
            par::verify_identical(group, parameters.values().to_host().span<float>(), "parameters");
            test = evaluate(group, tested, data.test, data::kCifar10, [&](const Tensor& x) {
                trial.pulse();
                return network({x})[0];
            });
            phases.lap(PhaseClock::evaluate);
            run.report("ranks", phases.gather(group, own_steps, own_images));
            run.end_epoch(at, test);
            stop = !group.all(!run.asked_to_stop(), "go on");
        }
        run.save_model(parameters);
        run.save_checkpoint(at, parameters, optimizer);
        if (!test.predictions.empty()) run.report("confusion", report_confusion(data.test, test.predictions));
    }

    if (length.steps == 0) run.save_model(parameters);
    const int code = run.end(at, stop);
    if (s.plan_dump)
        run.note(cat("accelerate: ", network.occupancy() * double(network.cache_size), " plans, hit rate ",
                     100 * network.hit_rate(), " %"));
    // By a GPU's clock, ops are measured one by one, which takes longer than they do: they are all there is to share.
    const double whole = on_device ? 0 : std::chrono::duration<double>(Clock::now() - begin).count();
    if (s.profile) run.note(profile.table(whole));
    return code;
}

} // namespace

Json rg::check_train_cifar(const std::vector<std::string>& args) {
    Settings settings;
    Options options("train_cifar", "");
    declare(options, settings);
    options.parse(args);
    return options.to_json();
}

void rg::check_data_train_cifar(par::Group& group, const std::vector<std::string>& args) {
    Settings settings;
    Options options("train_cifar", "");
    declare(options, settings);
    options.parse(args);
    load(settings, group, {});
}

int rg::train_cifar(par::Group& group, const std::vector<std::string>& args, Trial& trial) {
    Settings settings;
    Options options("train_cifar", "trains a convolutional network on CIFAR-10, alone or under mpiexec");
    declare(options, settings);
    if (!options.parse(args)) {
        if (group.rank() == 0) std::cout << options.help();
        return 0;
    }
    TrainingRun run("train_cifar", settings.run, options, group, trial,
                    {"batch-size", "validation", "partial-batch", "shuffle", "seed", "augment", "translate", "fill",
                     "width", "depth", "init", "initializer"});
    return run.attempt([&] { return train(run, settings, options, group, trial); });
}

#ifndef RG_NO_MAIN // the programs that run this one's trainings have one of their own
int main(int argc, char** argv) {
    return par::run_ranks_main(argc, argv, [&](par::Group& group) {
        Trial trial;
        return train_cifar(group, {argv + 1, argv + argc}, trial);
    });
}
#endif
