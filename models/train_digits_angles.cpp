// train_digits_angles: trains a network with two heads, one for the class of a digit and one for the angle of its
// rotation. By default, it then repeats the training with --no-accelerate (op by op, without a plan) and compares the
// times. The second training is a separate run, so the first can be resumed like any other.
//
// The network, and so the saved model, gives the angle in degrees. The loss is cross-entropy + 0.1 x the mean squared
// error in degrees^2. By default, training leaves out the last mini-batch of an epoch if it is smaller than the others
// (--partial-batch). The test uses all images.
#include "ringgrad/core/formatted.h"
#include "ringgrad/data/digits.h"
#include "ringgrad/models/programs.h"
#include "ringgrad/models/run/data_parallel.h"
#include "ringgrad/models/run/memory.h"
#include "ringgrad/models/run/model_file.h"
#include "ringgrad/models/run/report.h"
#include "ringgrad/models/run/trainer.h"
#include "ringgrad/models/run/training_options.h"

#include <cmath>
#include <filesystem>
#include <iostream>

using namespace rg;

namespace {

/// Weight of the mean squared error in the loss.
constexpr double kAngleWeight = 0.1;

constexpr const char* kMemoryAdvice = "make --batch-size smaller, or start fewer ranks";

/// The times of a training, how often it found a plan (Accelerated) in its cache, and how it ended.
struct Result {
    Trainer::Seconds seconds = {};
    double train_hits = 0, test_hits = 0; // fraction of calls that found their plan in the cache
    bool stopped = false;
    int exit_code = 0;
};

struct TrainDigitsAngles final : Training, TrainingOptions {
    bool compare = true;
    TrainDigitsAngles() {
        data_texts = {"class folders of 28 x 28 PNGs with angles.csv", "drawn digits"};
        data_options.batch_size = 32;
        augmentations = {"translate", "scale"}; // flips, rotate and resized-crop change the angle
        augment = "translate", translate = 2;
        default_rate = {0.002, 32, true};
        run_options.predictor = "predict";
        optimizer.kind = OptimizerOptions::Kind::adam;
    }

    void declare(Options& o) override {
        declare_data(o);
        declare_training(o);
        machine_options.declare(o);
        o.add("compare", &compare,
              "train a second time, op by op, and compare the times; with --run-name NAME the second run is "
              "NAME-plain; off with --resume or --no-accelerate");
        run_options.declare(o);
    }
    data::TrainTest load(par::Group& group, const std::function<void()>& pulse) const override;
    int train(Options& options, par::Group& group, Trial& trial) override;
    /// Collective. Trains once. Loads `data` if it is empty. In the first training, `accelerated` is null. In the
    /// second one, it is the result of the first, and the report compares the times of both.
    Result train(TrainingRun& run, const Options& options, data::TrainTest& data, const Result* accelerated);
};

double squared_errors(const Tensor& angles, const Tensor& targets) {
    double sum = 0;
    for (int64_t i = 0; i < angles.numel(); ++i) {
        const double error = double(angles.data<float>()[i]) - double(targets.data<float>()[i]);
        sum += error * error;
    }
    return sum;
}

/// Returns the times of both trainings as the member "bars" of the report; see report.h.
Json bars_of(const Result& plain, const Result& accelerated) {
    Json groups = Json::array();
    const auto add = [&](const char* name, double plain_seconds, double accelerated_seconds, double hits) {
        std::string note = "not measured"; // for example no test, if the training ended within its first epoch
        if (plain_seconds > 0 && accelerated_seconds > 0)
            note = formatted("%.2f times as fast, hit rate %.2f %%", plain_seconds / accelerated_seconds, 100 * hits);
        groups.push(Json::object()
                        .set("name", name)
                        .set("bars", Json::array()
                                         .push(Json::array().push("op by op").push(plain_seconds))
                                         .push(Json::array().push("accelerated").push(accelerated_seconds)))
                        .set("note", note));
    };
    add("training", plain.seconds.train, accelerated.seconds.train, accelerated.train_hits);
    add("prediction", plain.seconds.test, accelerated.seconds.test, accelerated.test_hits);
    return Json::object().set("title", "Op by op and accelerated").set("unit", "seconds").set("groups", groups);
}

data::TrainTest TrainDigitsAngles::load(par::Group& group, const std::function<void()>& pulse) const {
    data::TrainTest data = load_digits(group, data_options, pulse);
    for (const data::ImageSet* set : {&data.train, &data.test})
        RG_CHECK(!set->targets.empty(), "train_digits_angles: expected images with angles (angles.csv), got ",
                 data.source);
    return data;
}

/// Collective. Returns the score on a set, with the root mean squared error of the angles in degrees, and reports the
/// confusion matrix.
Score test(TrainingRun& run, const data::ImageSet& set, ImageFeed& feed, Accelerated& predict) {
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
        predictions.add(batch.first, scores);
    }
    run.group().allreduce_sum(std::span<double>(sums), "test");
    for (double& sum : sums) sum /= double(set.count);
    const std::string& name = run.test_set_name;
    const ExtraMetric rmse{name + "_angle_rmse", name + " angle rmse %.2f deg", std::sqrt(sums[2])};
    const Score score{sums[0], sums[1], predictions.gather(run.group()), {rmse}};
    run.report("confusion", report_confusion(set, score.predictions));
    return score;
}

Result TrainDigitsAngles::train(TrainingRun& run, const Options& options, data::TrainTest& data,
                                const Result* accelerated) {
    Machine machine(machine_options, options, run.group());
    int64_t& batch_size = data_options.batch_size;
    if (!options.was_given("batch-size") && !run.resumed()) batch_size = machine.workers().scaled(batch_size);
    complete_schedule(options);
    const Context context = machine.context();
    const ContextScope scope(context);
    if (data.source.empty()) data = load(run.group(), [&] { run.pulse(); });
    run.test_set_name = data_options.test_set_name();
    run.check_data(data);

    const NetworkChoice choice({"digits-angles"});
    const std::unique_ptr<Network> network = choice.make(task_of(data.train, uint64_t(data_options.seed)));
    Parameters& parameters = network->parameters;
    ImageFeed feed(data.train, loader_options(data::kDigits), machine);
    const Tensor angle_weight = Tensor::constant({1, 1}, kAngleWeight);
    Trainer trainer(run, machine, parameters, Optimizer(parameters, optimizer), feed,
                    [&](const data::Batch& batch) -> ScoresAndLoss {
                        const std::vector<Tensor> out = network->outputs(batch.x, Mode::train); // scores, angles
                        const Tensor squares = mse_loss(out[1], batch.targets).reshape({1, 1});
                        const Tensor angle_loss = linear(squares, angle_weight).reshape({});
                        return {out[0], add(cross_entropy(out[0], batch.labels, float(smoothing)), angle_loss)};
                    });
    data::LoaderOptions in_order = loader_options(data::kDigits);
    in_order.shuffle = data::Shuffle::never, in_order.keep_partial = true, in_order.augment = {};
    ImageFeed test_feed(data.test, in_order, machine);
    Accelerated predict(
        [&](std::span<const Tensor> in, bool) { return network->outputs(test_feed.batch(in).x, Mode::evaluate); },
        machine_options.accelerate);
    const auto plan_largest = [&] { trainer.plan(), predict.plan(test_feed.images(test_feed.largest_batch())); };
    if (!machine.device())
        check_planned_memory(run.group(), {&trainer.train_step, &predict},
                             checkpoint_memory(parameters.values().bytes(), optimizer.buffers()), plan_largest,
                             kMemoryAdvice);

    run.begin(feed.length(steps, epochs),
              describe_model(choice.describe(), data.train, data::kDigits, {{"angle", "degrees"}}),
              cat(machine.text(), machine_options.accelerate ? ", accelerated; " : ", op by op; ", data.source, "; ",
                  parameters.count(), " parameters"),
              data.warnings);
    run.report("network", report_network(parameters));
    Result result{.seconds = trainer.train(schedule, [&] { return test(run, data.test, test_feed, predict); }),
                  .train_hits = trainer.train_step.hit_rate(),
                  .test_hits = predict.hit_rate(),
                  .stopped = run.stopped()};
    run.log(Json::object()
                .set("accelerate", machine_options.accelerate)
                .set("train_seconds", result.seconds.train)
                .set("test_seconds", result.seconds.test)
                .set("train_hit_rate", result.train_hits)
                .set("test_hit_rate", result.test_hits));
    run.note(formatted("training %.2f s, hit rate %.2f %%; prediction %.2f s, hit rate %.2f %%", result.seconds.train,
                       100 * result.train_hits, result.seconds.test, 100 * result.test_hits));
    if (accelerated) run.report("bars", bars_of(result, *accelerated));
    result.exit_code = run.end();
    return result;
}

/// Returns `bars`, from bars_of(), as text for a terminal. Each time has a line with a bar of # characters.
std::string chart(const Json& bars) {
    std::string text;
    for (const Json& group : bars.at("groups").as_array()) {
        double longest = 0;
        for (const Json& bar : group.at("bars").as_array()) longest = std::max(longest, bar.as_array()[1].as_double());
        for (const Json& bar : group.at("bars").as_array()) {
            const double seconds = bar.as_array()[1].as_double();
            text += formatted("%-10s %-11s %8.2f s  ", group.at("name").as_string().c_str(),
                              bar.as_array()[0].as_string().c_str(), seconds);
            text += std::string(longest > 0 ? size_t(std::lround(40 * seconds / longest)) : 0, '#') + "\n";
        }
        text += std::string(11, ' ') + group.at("note").as_string() + "\n";
    }
    return text;
}

int TrainDigitsAngles::train(Options& options, par::Group& group, Trial& trial) {
    const bool can_compare = trial.standalone() && machine_options.accelerate;
    RG_CHECK(machine_options.accelerate || !compare || !options.was_given("compare"),
             "train_digits_angles: expected --accelerate with --compare, got --no-accelerate; omit one of them");
    const bool trains_twice = compare && can_compare && !run_options.resume;
    const std::string plain_name = run_options.name.empty() ? "" : run_options.name + "-plain";
    RG_CHECK(!trains_twice || plain_name.empty() || !std::filesystem::exists(run_options.runs + "/" + plain_name),
             "train_digits_angles: expected no run ", run_options.runs, "/", plain_name,
             ", which --compare creates, got one; give another --run-name, or --no-compare");
    data::TrainTest data;
    const auto train_once = [&](const Result* accelerated) {
        TrainingRun run(run_options, options, group, trial);
        Result result{.stopped = true}; // remains if a stop request ends the loading of data
        result.exit_code = run.supervise([&] {
            result = train(run, options, data, accelerated);
            return result.exit_code;
        });
        return result;
    };
    const int64_t batch_size = data_options.batch_size; // train() may change it
    const Result accelerated = train_once(nullptr);
    if (compare && can_compare && run_options.resume && group.rank() == 0)
        std::cout << "not compared with a training op by op, since this run was resumed" << std::endl;
    if (!trains_twice || accelerated.stopped) return accelerated.exit_code;
    run_options.name = plain_name;
    data_options.batch_size = batch_size;
    machine_options.accelerate = false;
    const Result plain = train_once(&accelerated);
    if (group.rank() == 0 && !plain.stopped) std::cout << chart(bars_of(plain, accelerated));
    return plain.exit_code;
}

} // namespace

constinit const Program rg::train_digits_angles{"train_digits_angles",
                                                "trains a network to recognise digits and the angles of their rotation",
                                                make_training<TrainDigitsAngles>,
                                                {"--epochs 3", "--data ~/digits --no-compare"}};
