// train_digits_angles: trains one network with two heads, for the class of a digit and for the angle that it is turned
// by. Then it makes the same training once more op by op, and compares the times. The second training is a run of its
// own, so the first is resumed like any other.
//
// The network gives degrees, and so does the saved model. The loss is cross-entropy + 0.1 x the mean squared error in
// degrees. A last batch that is smaller is dropped in training, and kept in testing.
#include "data/digits.h"
#include "models/nets/digits_net.h"
#include "models/run/data_parallel.h"
#include "models/run/digits_options.h"
#include "models/run/memory.h"
#include "models/run/report.h"
#include "models/run/trainer.h"
#include "models/sweep/programs.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>

using namespace rg;

namespace {

/// Weight of a squared error in degrees beside the cross-entropy.
constexpr double kAngleWeight = 0.1;

struct Settings final : Training, DigitsOptions {
    bool compare = true;
    Settings() { batch_size = 32; }

    void declare(Options& o) override {
        declare_data(o, "class folders of PNGs, with angles.csv", "such folders");
        declare_training(o);
        machine.declare(o);
        o.add("compare", &compare,
              "train and test once more op by op, as run NAME-plain, and compare the times; not after --resume");
        run.declare(o);
    }
    data::TrainTest load(par::Group& group, const std::function<void()>& pulse) const override;
    int train(Options& options, par::Group& group, Trial& trial) override;
};

/// What a training has taken and reached.
struct Result {
    double train_seconds = 0, test_seconds = 0;
    double train_hits = 0, test_hits = 0; // calls of the network that found their plan, as a part of all
    bool stopped = false;
    int code = 0; // of the program's exit
};

double squared_errors(const Tensor& angles, const Tensor& targets) {
    double sum = 0;
    for (int64_t i = 0; i < angles.numel(); ++i) {
        const double error = double(angles.data<float>()[i]) - double(targets.data<float>()[i]);
        sum += error * error;
    }
    return sum;
}

/// Times as bars: training and testing, before and after.
Json bars_of(const Result& plain, const Result& accelerated) {
    Json groups = Json::array();
    const auto add = [&](const char* what, double before, double after, double hits) {
        char note[96] = "not measured"; // e.g. testing, if the training ended within its first epoch
        if (before > 0 && after > 0)
            std::snprintf(note, sizeof note, "%.2f times as fast, hit rate %.2f %%", before / after, 100 * hits);
        groups.push(Json::object()
                        .set("name", what)
                        .set("bars", Json::array()
                                         .push(Json::array().push("op by op").push(before))
                                         .push(Json::array().push("accelerated").push(after)))
                        .set("note", note));
    };
    add("training", plain.train_seconds, accelerated.train_seconds, accelerated.train_hits);
    add("prediction", plain.test_seconds, accelerated.test_seconds, accelerated.test_hits);
    return Json::object().set("title", "Op by op and accelerated").set("unit", "seconds").set("groups", groups);
}

data::TrainTest Settings::load(par::Group& group, const std::function<void()>& pulse) const {
    data::TrainTest data = DigitsOptions::load(group, pulse);
    for (const data::ImageSet* set : {&data.train, &data.test})
        RG_CHECK(!set->targets.empty(), "train_digits_angles: expected images with angles (angles.csv), got ",
                 data.source);
    return data;
}

/// Collective. The score on a set, and the root of the mean squared error of the angles in degrees.
std::pair<Score, double> test(TrainingRun& run, const data::ImageSet& set, ImageFeed& feed, Accelerated& predict) {
    double sums[3] = {0, 0, 0}; // loss, correct, squared errors of the angles
    Predictions predictions(set.count);
    for (feed.loader.start(1); feed.loader.has_next();) {
        run.pulse();
        const data::Batch batch = feed.loader.next();
        const int64_t n = batch.labels.extent(0);
        if (n == 0) continue;
        const std::span<const Tensor> out = predict(feed.images(batch));
        const Tensor scores = out[0].to_host(), angles = out[1].to_host();
        const double squares = squared_errors(angles, batch.targets);
        sums[0] += double(n) * host_cross_entropy(scores, batch.labels) + kAngleWeight * squares;
        sums[1] += double(count_correct(scores, batch.labels));
        sums[2] += squares;
        predictions.add(feed.first(batch), scores);
    }
    run.group().allreduce_sum(std::span<double>(sums), "test");
    for (double& sum : sums) sum /= double(set.count);
    const Score score{sums[0], sums[1], predictions.gather(run.group())};
    run.report("confusion", report_confusion(set, score.predictions));
    return {score, std::sqrt(sums[2])};
}

Result train_epochs(TrainingRun& run, Trainer& trainer, const Schedule& schedule,
                    const std::function<std::pair<Score, double>()>& test) {
    Result result;
    while (run.goes_on()) {
        result.train_seconds += seconds_of([&] {
            trainer.begin_epoch();
            while (run.epoch_goes_on()) {
                const data::Batch batch = trainer.next_batch();
                const StepResult step = trainer.step(batch, schedule.rate_at(run.epochs()));
                run.step(step);
            }
        });
        if (run.epoch_is_complete()) {
            std::pair<Score, double> tested;
            result.test_seconds += seconds_of([&] { tested = test(); });
            const std::string name = run.tested + "_angle_rmse", text = run.tested + " angle rmse %.2f deg";
            run.end_epoch(tested.first, {{name.c_str(), text.c_str(), tested.second}});
        }
        run.save();
    }
    result.stopped = run.stopped();
    return result;
}

/// Reads `data` if it is empty. `accelerated`: the training that this one is compared with, if any.
Result train(TrainingRun& run, Settings& s, Options& options, par::Group& group, data::TrainTest& data,
             const Result* accelerated) {
    Machine machine(s.machine, options, group);
    if (!options.was_given("batch-size") && !run.resumed()) s.batch_size = machine.workers().scaled(s.batch_size);
    if (s.lr == 0) s.lr = 0.002 * std::sqrt(double(s.batch_size) / 32);
    if (data.source.empty()) data = s.load(group, [&] { run.pulse(); });
    run.tested = s.data.tested();
    verify_same_data(group, data, run.tested);
    const Context context = machine.context();
    const ContextScope scope(context);

    DigitsAnglesNet net({.classes = int64_t(data.train.classes.size()), .seed = uint64_t(s.seed)});
    ImageFeed feed(data.train, s.loader(), machine);
    const Tensor angle_weight = Tensor::constant({1, 1}, kAngleWeight);
    Trainer trainer(run, machine, net.parameters, adam(net.parameters, {.weight_decay = float(s.l2)}), feed,
                    [&](const data::Batch& batch) -> ScoresAndLoss {
                        const auto [scores, angles] = net.forward(batch.x, Mode::train);
                        const Tensor squares = mse_loss(angles, batch.targets).reshape({1, 1});
                        const Tensor angle_loss = linear(squares, angle_weight).reshape({});
                        return {scores, add(cross_entropy(scores, batch.labels), angle_loss)};
                    });
    data::LoaderOptions in_order = s.loader();
    in_order.shuffle = false, in_order.keep_partial = true, in_order.augment = {};
    ImageFeed test_feed(data.test, in_order, machine);
    Accelerated predict(
        [&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
            const auto [scores, angles] = net.forward(test_feed.batch(in).x, Mode::evaluate);
            return {scores, angles};
        },
        s.machine.accelerate);
    const auto largest_batches = [&] { trainer.plan(), predict.plan(test_feed.images(test_feed.blank())); };
    if (!machine.device())
        check_planned_memory(group, {&trainer.train_step, &predict}, net.parameters, largest_batches, s.kMemoryAdvice);

    run.begin(feed.length(s.steps, s.epochs), data.train.classes,
              cat(machine.text(), s.machine.accelerate ? ", accelerated; " : ", op by op; ", data.source, "; ",
                  net.parameters.count(), " parameters"));
    run.report("network", report_network(net.parameters));
    Result result = train_epochs(run, trainer, s.rates(), [&] { return test(run, data.test, test_feed, predict); });
    result.train_hits = trainer.train_step.hit_rate(), result.test_hits = predict.hit_rate();
    run.log(Json::object()
                .set("accelerate", s.machine.accelerate)
                .set("train_seconds", result.train_seconds)
                .set("test_seconds", result.test_seconds)
                .set("train_hit_rate", result.train_hits)
                .set("test_hit_rate", result.test_hits));
    char text[128];
    std::snprintf(text, sizeof text, "training %.2f s, hit rate %.2f %%; prediction %.2f s, hit rate %.2f %%",
                  result.train_seconds, 100 * result.train_hits, result.test_seconds, 100 * result.test_hits);
    run.note(text);
    if (accelerated) run.report("bars", bars_of(result, *accelerated));
    result.code = run.end();
    return result;
}

Result train(Settings& s, Options& options, par::Group& group, Trial& trial, data::TrainTest& data,
             const Result* accelerated = nullptr) {
    TrainingRun run("train_digits_angles", s.run, options, group, trial,
                    {"batch-size", "validation", "shuffle", "augment", "seed", "init"});
    Result result{.stopped = true}; // if loading is stopped
    result.code = run.attempt([&] {
        result = train(run, s, options, group, data, accelerated);
        return result.code;
    });
    return result;
}

/// The same bars as text.
std::string chart(const Json& bars) {
    std::string text;
    char line[128];
    for (const Json& group : bars.at("groups").as_array()) {
        double longest = 0;
        for (const Json& bar : group.at("bars").as_array()) longest = std::max(longest, bar.as_array()[1].as_double());
        for (const Json& bar : group.at("bars").as_array()) {
            const double seconds = bar.as_array()[1].as_double();
            std::snprintf(line, sizeof line, "%-10s %-11s %8.2f s  ", group.at("name").as_string().c_str(),
                          bar.as_array()[0].as_string().c_str(), seconds);
            text += line + std::string(longest > 0 ? size_t(std::lround(40 * seconds / longest)) : 0, '#') + "\n";
        }
        text += std::string(11, ' ') + group.at("note").as_string() + "\n";
    }
    return text;
}

int Settings::train(Options& options, par::Group& group, Trial& trial) {
    Settings& s = *this;
    const bool can_compare = trial.alone() && s.machine.accelerate;
    RG_CHECK(s.machine.accelerate || !s.compare || !options.was_given("compare"),
             "train_digits_angles: --compare trains accelerated and op by op: not with --no-accelerate");
    const bool compare = s.compare && can_compare && !s.run.resume;
    const std::string plain_name = s.run.name.empty() ? "" : s.run.name + "-plain";
    RG_CHECK(!compare || plain_name.empty() || !std::filesystem::exists(s.run.runs + "/" + plain_name),
             "train_digits_angles: the run ", s.run.runs, "/", plain_name,
             " exists already; give another --run-name, or --no-compare");
    const int64_t batch_size = s.batch_size; // train() may change it
    data::TrainTest data;
    const Result accelerated = ::train(s, options, group, trial, data);
    if (s.compare && can_compare && s.run.resume && group.rank() == 0)
        std::cout << "not compared with a training op by op: --resume has gone on with this one alone" << std::endl;
    if (!compare || accelerated.stopped) return accelerated.code;
    s.run.name = plain_name;
    s.batch_size = batch_size;
    s.machine.accelerate = false;
    const Result plain = ::train(s, options, group, trial, data, &accelerated);
    if (group.rank() == 0 && !plain.stopped) std::cout << chart(bars_of(plain, accelerated));
    return plain.code;
}

} // namespace

constinit const Program rg::train_digits_angles{
    "train_digits_angles", "trains a network to tell digits and the angles that they are turned by",
    []() -> std::unique_ptr<Training> { return std::make_unique<Settings>(); }};
