// train_digits: trains digits_net on drawn digits or MNIST, on one process or on several MPI ranks. It is the
// shortest program with ranks, checkpoints and a report; use it as a template for your own.
#include "ringgrad/data/digits.h"
#include "ringgrad/models/nets/digits_net.h"
#include "ringgrad/models/run/data_parallel.h"
#include "ringgrad/models/run/program.h"
#include "ringgrad/models/run/report.h"
#include "ringgrad/models/run/trainer.h"
#include "ringgrad/models/run/training_options.h"

using namespace rg;

namespace {

struct TrainDigits final : Training, DigitsOptions {
    TrainDigits() { l2 = 1e-4; }

    void declare(Options& o) override {
        DigitsOptions::declare(o, "MNIST files or class folders of 28 x 28 PNGs", "class folders",
                               "0.01 x batch-size / 128");
        o.add("momentum", &momentum, "momentum of SGD").range(0, 1);
        machine_options.declare(o);
        run_options.declare(o);
    }
    data::TrainTest load(par::Group& group, const std::function<void()>& pulse) const override {
        return DigitsOptions::load(group, pulse);
    }
    int train(Options& options, par::Group& group, Trial& trial) override {
        TrainingRun run("train_digits", run_options, options, group, trial);
        return run.supervise([&] { return train(run, options); });
    }
    int train(TrainingRun& run, const Options& options);
};

int TrainDigits::train(TrainingRun& run, const Options& options) {
    Machine machine(machine_options, options, run.group());
    int64_t& batch_size = data_options.batch_size;
    if (!options.was_given("batch-size") && !run.resumed()) batch_size = machine.workers().scaled(batch_size);
    if (schedule.base == 0) schedule.base = 0.01 * double(batch_size) / 128;
    schedule.epochs = double(epochs);
    const data::TrainTest data = load(run.group(), [&] { run.pulse(); });
    run.test_set_name = data_options.test_set_name();
    verify_same_data(run.group(), data, run.test_set_name);
    const Context context = machine.context();
    const ContextScope scope(context);

    DigitsNet net({.classes = int64_t(data.train.classes.size()), .seed = uint64_t(data_options.seed)});
    ImageFeed feed(data.train, loader_options(), machine);
    const Sgdm sgd{.momentum = float(momentum), .weight_decay = float(l2)};
    Trainer trainer(run, machine, net.parameters, sgdm(net.parameters, sgd), feed,
                    [&](const data::Batch& batch) -> ScoresAndLoss {
                        const Tensor scores = net.forward(batch.x, Mode::train);
                        return {scores, cross_entropy(scores, batch.labels)};
                    });
    Evaluation test{run, machine, data.test, data::kDigits,
                    [&](const Tensor& x) { return net.forward(x, Mode::evaluate); }};
    const Plan& plan = plan_ahead(trainer, test, kMemoryAdvice);
    run.begin(feed.length(steps, epochs), data.train.classes,
              cat(machine.text(), "; ", data.source, "; ", net.parameters.count(), " parameters"));
    run.report("network", report_network(net.parameters, &plan));
    trainer.train(schedule, [&] { return test.score(); });
    return run.end();
}

} // namespace

constinit const Program rg::train_digits{"train_digits",
                                         "trains a small network on digits, on one process or under mpiexec",
                                         []() -> std::unique_ptr<Training> { return std::make_unique<TrainDigits>(); }};
