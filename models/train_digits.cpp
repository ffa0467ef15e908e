// train_digits: a training loop of one's own, on one process or on several MPI ranks, with nothing between the loop and
// the ops: what each rank computes, what is summed over the ranks and how, and the update, in the order in which they
// happen. The network is digits_net, the data drawn digits or MNIST.
//
// Each rank holds the whole network and takes its share f = m / M of the M images of a mini-batch. The gradient and
// the loss of the mini-batch are the sums of f times those of the ranks; so is the running mean of batch norm, and its
// running variance counts how far apart the ranks' means are, too (par/aggregate.h).
#include "core/accelerate.h"
#include "core/tape.h"
#include "data/digits.h"
#include "models/nets/digits_net.h"
#include "models/run/data_parallel.h"
#include "models/run/digits_options.h"
#include "models/run/gradient_sum.h"
#include "models/run/memory.h"
#include "models/run/report.h"
#include "models/sweep/programs.h"
#include "par/session.h"

#include <iostream>

using namespace rg;

namespace {

struct Settings : DigitsOptions {
    double momentum = 0.9;
    Settings() { l2 = 1e-4; }

    void declare(Options& o) {
        declare_data(o, "MNIST's files, or of class folders of PNGs", "the latter");
        declare_training(o);
        o.add("momentum", &momentum, "of SGD").range(0, 1);
        machine.declare(o);
        run.declare(o);
    }
};

int train(TrainingRun& run, Settings& s, Options& options, par::Group& group, Trial& trial) {
    Machine machine(s.machine, options, group);
    const Workers& workers = machine.workers();
    if (!options.given("batch-size") && !run.resumed()) s.batch_size = workers.scaled(s.batch_size);
    if (s.lr == 0) s.lr = 0.01 * double(s.batch_size) / 128;

    const data::TrainTest data = s.load(group, [&] { trial.pulse(); });
    verify_same_data(group, data.train, "training set");
    run.tested = s.data.tested();
    verify_same_data(group, data.test, run.tested + " set");
    const Context context = machine.context();
    const ContextScope scope(context);

    // A device has all training images, and makes the views of them; the loader only says which.
    const bool on_device = machine.device() != nullptr;
    data::Loader loader(data.train, s.loader(workers, on_device));
    const Tensor images = on_device ? data::resident(data.train) : Tensor();
    const Tensor statistics = loader.augmenter().statistics();
    const TrainingRun::Length length = s.length(loader);

    DigitsNet net({.classes = int64_t(data.train.classes.size()), .seed = uint64_t(s.seed)});
    Parameters& parameters = net.parameters;
    if (group.size() > 1 && !machine.device()) // where ranks share memory, gradients are summed where they are
        parameters.place_gradients(group.memory(size_t(parameters.gradient_bytes()), "gradients").data());
    const OptimizerState optimizer{{"optimizer.velocity", Tensor::zeros(parameters.values().shape())}};
    Position at = run.restore(parameters, optimizer);

    // The update: of no effect if gradients or loss are not finite, of which run.judge() hears afterwards.
    const Tensor rate = Tensor::zeros({1}), loss_of_all = Tensor::zeros({}), found = Tensor::zeros({}, DType::i32);
    const auto update = [&](const Tensor& loss) {
        first_non_finite(parameters.gradients(), loss, found);
        sgdm_update(parameters.values(), optimizer[0].value, parameters.gradients(),
                    {.momentum = float(s.momentum), .weight_decay = float(s.l2)}, rate, found);
    };

    // Scores of images; in training also the loss, the gradients into their buffer, and where nobody else has
    // gradients the update.
    const std::vector<Tensor> values = parameters.value_list(), gradients = parameters.gradient_list();
    Accelerated network([&](std::span<const Tensor> in, bool training) -> std::vector<Tensor> {
        const Tensor x = training && on_device
                             ? augment(images, in[0], in[1], statistics,
                                       {data::kDigitSide, data::kDigitSide, false, machine.activations()})
                             : cast(in[0], machine.activations());
        if (!training) return {net.forward(x, Mode::evaluate)};
        Tape tape;
        const Tensor scores = net.forward(x, Mode::train);
        const Tensor loss = cross_entropy(scores, in.back());
        tape.gradients(loss, values, gradients);
        if (group.size() == 1) update(loss);
        return {scores, loss};
    });
    network.enabled = s.machine.accelerate;
    GradientSum gradient_sum(group, parameters, s.machine.allreduce, false);
    network.after_step = [&](const Plan& plan, size_t step) { return gradient_sum.after_step(plan, step); };

    const data::Range tested = workers.share_of(data.test.count);
    const auto largest_batches = [&] {
        const auto images_of = [](int64_t n) { return Tensor::on_host({n, data::kDigitSide, data::kDigitSide, 1}); };
        const int64_t share = workers.share_of(s.batch_size).size();
        network.plan({images_of(share), Tensor::on_host({share}, DType::i32)}, true);
        network.plan({images_of(std::min(kEvaluationBatch, tested.size()))}, false);
    };
    if (!on_device) check_planned_memory(group, {&network}, parameters, largest_batches, DigitsOptions::kMemoryAdvice);

    run.begin(at, length, data.train.classes,
              cat(machine.text(), "; ", data.source, "; ", parameters.count(), " parameters"));
    run.report("network", report_network(parameters));

    bool stop = false;
    while (at.step < length.steps && !stop) {
        run.begin_epoch(at);
        stop = !group.all(!run.asked_to_stop(), "go on");
        loader.start(at.epoch, at.batch);
        bool all_have_data = group.all(loader.has_next(), "has data");
        while (at.step < length.steps && !stop && all_have_data) {
            const data::Batch batch = loader.next();
            const double share = double(batch.labels.extent(0)) / double(batch.global_size);
            group.set_step(at.step + 1);

            // Forward and backward on this rank's images; then the gradients of the whole mini-batch.
            const double lr = s.lr_at(at, loader);
            rate.fill(lr);
            gradient_sum.begin(share);
            const std::span<const Tensor> result = on_device ? network({batch.indices, batch.views, batch.labels}, true)
                                                             : network({batch.x, batch.labels}, true);
            gradient_sum.finish(); // first: what is read next, a device has to be done for
            const Tensor scores = result[0].to_host(), loss = result[1].to_host();

            // The state of batch norm; and, in the same message, sums over the ranks of the loss and of what was right,
            // whether anyone was asked to stop, and whether anyone has no more data.
            double sums[] = {share > 0 ? share * double(loss.data<float>()[0]) : 0,
                             double(count_correct(scores, batch.labels)), double(run.asked_to_stop()),
                             double(!loader.has_next())};
            aggregate_state(group, parameters, share, sums);
            ++parameters.batches_tracked;
            stop = sums[2] > 0, all_have_data = sums[3] == 0;

            // The same update on every rank.
            if (group.size() > 1) loss_of_all.fill(sums[0]), update(loss_of_all);
            if (run.judge(at, sums[0], found) == Verdict::rolled_back) break;

            run.step(at, {batch.global_size, sums[0], sums[1], lr});
            if (run.due(at)) run.save_checkpoint(at, parameters, optimizer);
        }
        Score score;
        if (at.batch == loader.batches()) { // else stopped on the way: `at` is where to go on
            par::verify_identical(group, parameters.values().to_host().span<float>(), "parameters");
            score = evaluate(group, tested, data.test, data::kDigits, [&](const Tensor& x) {
                trial.pulse();
                return network({x})[0];
            });
            run.end_epoch(at, score);
            stop = !group.all(!run.asked_to_stop(), "go on");
        }
        run.save_model(parameters);
        run.save_checkpoint(at, parameters, optimizer);
        if (!score.predictions.empty()) run.report("confusion", report_confusion(data.test, score.predictions));
    }
    if (length.steps == 0) run.save_model(parameters);
    return run.end(at, stop);
}

} // namespace

Json rg::check_train_digits(const std::vector<std::string>& args) {
    Settings settings;
    Options options("train_digits", "");
    settings.declare(options);
    options.parse(args);
    return options.to_json();
}

void rg::check_data_train_digits(par::Group& group, const std::vector<std::string>& args) {
    Settings settings;
    Options options("train_digits", "");
    settings.declare(options);
    options.parse(args);
    settings.load(group);
}

int rg::train_digits(par::Group& group, const std::vector<std::string>& args, Trial& trial) {
    Settings settings;
    Options options("train_digits", "trains a small network on digits by a loop in plain view, alone or on ranks");
    settings.declare(options);
    if (!options.parse(args)) {
        if (group.rank() == 0) std::cout << options.help();
        return 0;
    }
    TrainingRun run("train_digits", settings.run, options, group, trial,
                    {"batch-size", "validation", "shuffle", "augment", "seed", "init"});
    return run.attempt([&] { return train(run, settings, options, group, trial); });
}

#ifndef RG_NO_MAIN // the programs that run this one's trainings have one of their own
int main(int argc, char** argv) {
    return par::run_ranks_main(argc, argv, [&](par::Group& group) {
        Trial trial;
        return train_digits(group, {argv + 1, argv + argc}, trial);
    });
}
#endif
