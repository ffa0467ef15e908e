// train_digits: trains digits_net on drawn digits or MNIST, on one process or on several MPI ranks. The smallest of the
// training programs, to begin one's own from.
#include "data/digits.h"
#include "models/nets/digits_net.h"
#include "models/run/data_parallel.h"
#include "models/run/digits_options.h"
#include "models/run/report.h"
#include "models/run/trainer.h"
#include "models/sweep/programs.h"

using namespace rg;

namespace {

struct Settings final : Training, DigitsOptions {
    double momentum = 0.9;
    Settings() { l2 = 1e-4; }

    void declare(Options& o) override {
        declare_data(o, "MNIST's files, or of class folders of PNGs", "the latter");
        declare_training(o);
        o.add("momentum", &momentum, "of SGD").range(0, 1);
        machine.declare(o);
        run.declare(o);
    }
    data::TrainTest load(par::Group& group, const std::function<void()>& pulse) const override {
        return DigitsOptions::load(group, pulse);
    }
    int train(Options& options, par::Group& group, Trial& trial) override;
};

int train(TrainingRun& run, Settings& s, Options& options, par::Group& group) {
    Machine machine(s.machine, options, group);
    if (!options.was_given("batch-size") && !run.resumed()) s.batch_size = machine.workers().scaled(s.batch_size);
    if (s.lr == 0) s.lr = 0.01 * double(s.batch_size) / 128;
    const data::TrainTest data = s.load(group, [&] { run.pulse(); });
    run.tested = s.data.tested();
    verify_same_data(group, data, run.tested);
    const Context context = machine.context();
    const ContextScope scope(context);

    DigitsNet net({.classes = int64_t(data.train.classes.size()), .seed = uint64_t(s.seed)});
    ImageFeed feed(data.train, s.loader(), machine);
    const Sgdm sgd{.momentum = float(s.momentum), .weight_decay = float(s.l2)};
    Trainer trainer(run, machine, net.parameters, sgdm(net.parameters, sgd), feed,
                    [&](const data::Batch& batch) -> ScoresAndLoss {
                        const Tensor scores = net.forward(batch.x, Mode::train);
                        return {scores, cross_entropy(scores, batch.labels)};
                    });
    Evaluation test{run, machine, data.test, data::kDigits,
                    [&](const Tensor& x) { return net.forward(x, Mode::evaluate); }};
    const Plan& plan = plan_ahead(trainer, test, s.kMemoryAdvice);
    run.begin(feed.length(s.steps, s.epochs), data.train.classes,
              cat(machine.text(), "; ", data.source, "; ", net.parameters.count(), " parameters"));
    run.report("network", report_network(net.parameters, &plan));

    while (run.goes_on()) {
        trainer.begin_epoch();
        while (run.epoch_goes_on()) {
            const data::Batch batch = trainer.next_batch();
            const StepResult result = trainer.step(batch, s.rates().rate_at(run.epochs()));
            run.step(result);
        }
        if (run.epoch_is_complete()) run.end_epoch(test.score());
        run.save();
    }
    return run.end();
}

int Settings::train(Options& options, par::Group& group, Trial& trial) {
    TrainingRun training("train_digits", run, options, group, trial,
                         {"batch-size", "validation", "shuffle", "augment", "seed", "init"});
    return training.attempt([&] { return ::train(training, *this, options, group); });
}

} // namespace

constinit const Program rg::train_digits{"train_digits", "trains a small network on digits, alone or on several ranks",
                                         []() -> std::unique_ptr<Training> { return std::make_unique<Settings>(); }};
