// train_digits_angles: one network with two heads, the class of a digit and the angle that it is turned by, trained on
// both at once; and what `accelerate` is worth for it, by the same training once more without. That one comes second,
// as a run of its own, so that the run of the given name is resumed like any other.
//
// The network gives degrees, so the saved model does, too. The loss is cross-entropy + 0.1 x the mean squared error in
// degrees. Ranks share each mini-batch as in train_digits; a last batch that is smaller is dropped in training, and
// kept in testing.
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

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>

using namespace rg;

namespace {

/// Weight of a squared error in degrees beside the cross-entropy.
constexpr double kAngleWeight = 0.1;

struct Settings : DigitsOptions {
    bool compare = true;
    Settings() { batch_size = 32; }

    void declare(Options& o) {
        declare_data(o, "class folders of PNGs, with angles.csv", "such folders");
        declare_training(o);
        machine.declare(o);
        o.add("compare", &compare,
              "train and test once more op by op, as run NAME-plain, and compare the times; not after --resume");
        run.declare(o);
    }
};

/// What a training has taken and reached.
struct Result {
    double train_seconds = 0, test_seconds = 0;
    double train_hits = 0, test_hits = 0; // calls of the network that found their plan, as a part of all
    double accuracy = 0, rmse = 0;        // on the test set, at the end; degrees
    bool stopped = false;
    int code = 0; // of the program's exit
};

class Stopwatch {
public:
    explicit Stopwatch(double& seconds) : seconds_(seconds) {}
    ~Stopwatch() { seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count(); }

private:
    using Clock = std::chrono::steady_clock;
    double& seconds_;
    Clock::time_point begin_ = Clock::now();
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

data::TrainTest load(const Settings& s, par::Group& group, const std::function<void()>& pulse) {
    data::TrainTest data = s.load(group, pulse);
    for (const data::ImageSet* set : {&data.train, &data.test})
        RG_CHECK(!set->targets.empty(), "train_digits_angles: expected images with angles (angles.csv), got ",
                 data.source);
    return data;
}

/// `data` is read if there is none yet. `accelerated`: the training that this one is compared with, if any.
Result train(TrainingRun& run, Settings& s, Options& options, par::Group& group, Trial& trial, data::TrainTest& data,
             const Result* accelerated) {
    Machine machine(s.machine, options, group);
    const Workers& workers = machine.workers();
    if (!options.given("batch-size") && !run.resumed()) s.batch_size = workers.scaled(s.batch_size);
    if (s.lr == 0) s.lr = 0.002 * std::sqrt(double(s.batch_size) / 32);

    if (data.source.empty()) data = load(s, group, [&] { trial.pulse(); });
    run.tested = s.data.tested();
    verify_same_data(group, data.train, "training set");
    verify_same_data(group, data.test, run.tested + " set");
    const Context context = machine.context();
    const ContextScope scope(context);

    // A device has all images, and makes the views of them; the loaders only say which.
    const bool on_device = machine.device() != nullptr;
    const data::LoaderOptions shuffled = s.loader(workers, on_device);
    data::LoaderOptions in_order = shuffled;
    in_order.shuffle = false, in_order.keep_partial = true, in_order.augment = {};
    data::Loader loader(data.train, shuffled), test_loader(data.test, in_order);
    const Tensor train_images = on_device ? data::resident(data.train) : Tensor();
    const Tensor test_images = on_device ? data::resident(data.test) : Tensor();
    const Tensor statistics = loader.augmenter().statistics();
    const auto views = [&](const Tensor& images, std::span<const Tensor> in) {
        if (!on_device) return cast(in[0], machine.activations());
        constexpr int64_t kSide = data::kDigitSide;
        return augment(images, in[0], in[1], statistics, {kSide, kSide, false, machine.activations()});
    };
    const TrainingRun::Length length = s.length(loader);

    DigitsAnglesNet net({.classes = int64_t(data.train.classes.size()), .seed = uint64_t(s.seed)});
    Parameters& parameters = net.parameters;
    if (group.size() > 1 && !machine.device())
        parameters.place_gradients(group.memory(size_t(parameters.gradient_bytes()), "gradients").data());
    const OptimizerState adam{{"optimizer.m", Tensor::zeros(parameters.values().shape())},
                              {"optimizer.v", Tensor::zeros(parameters.values().shape())}};
    Position at = run.restore(parameters, adam);

    // The update: of no effect if gradients or loss are not finite, of which run.judge() hears afterwards.
    const Tensor now = Tensor::on_host({2}), rate_and_step = Tensor::zeros({2});
    const Tensor loss_of_all = Tensor::zeros({}), found = Tensor::zeros({}, DType::i32);
    const auto update = [&](const Tensor& loss) {
        first_non_finite(parameters.gradients(), loss, found);
        adam_update(parameters.values(), adam[0].value, adam[1].value, parameters.gradients(),
                    {.weight_decay = float(s.l2)}, rate_and_step, found);
    };

    // Two functions with a cache of plans each, so that each has its own hit rate.
    const std::vector<Tensor> values = parameters.value_list(), gradients = parameters.gradient_list();
    const Tensor angle_weight = Tensor::constant({1, 1}, kAngleWeight);
    Accelerated learn([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
        Tape tape;
        const auto [scores, angles] = net.forward(views(train_images, in), Mode::train);
        const Tensor &labels = in[in.size() - 2], &targets = in[in.size() - 1];
        const Tensor angle_loss = linear(mse_loss(angles, targets).reshape({1, 1}), angle_weight).reshape({});
        const Tensor loss = add(cross_entropy(scores, labels), angle_loss);
        tape.gradients(loss, values, gradients);
        if (group.size() == 1) update(loss);
        return {scores, loss};
    });
    Accelerated predict([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
        const auto [scores, angles] = net.forward(views(test_images, in), Mode::evaluate);
        return {scores, angles};
    });
    learn.enabled = predict.enabled = s.machine.accelerate;
    GradientSum gradient_sum(group, parameters, s.machine.allreduce, false);
    learn.after_step = [&](const Plan& plan, size_t step) { return gradient_sum.after_step(plan, step); };

    const auto largest_batches = [&] {
        const auto images_of = [](int64_t n) { return Tensor::on_host({n, data::kDigitSide, data::kDigitSide, 1}); };
        const int64_t share = workers.share_of(s.batch_size).size();
        learn.plan({images_of(share), Tensor::on_host({share}, DType::i32), Tensor::on_host({share, 1})}, true);
        predict.plan({images_of(workers.share_of(std::min(s.batch_size, data.test.count)).size())});
    };
    if (!on_device)
        check_planned_memory(group, {&learn, &predict}, parameters, largest_batches, DigitsOptions::kMemoryAdvice);

    run.begin(at, length, data.train.classes,
              cat(machine.text(), s.machine.accelerate ? ", accelerated; " : ", op by op; ", data.source, "; ",
                  parameters.count(), " parameters"));
    run.report("network", report_network(parameters));

    Result result;
    const auto train_epoch = [&] {
        const Stopwatch stopwatch(result.train_seconds);
        loader.start(at.epoch, at.batch);
        bool all_have_data = group.all(loader.has_next(), "has data");
        while (at.step < length.steps && !result.stopped && all_have_data) {
            const data::Batch batch = loader.next();
            const double share = double(batch.labels.extent(0)) / double(batch.global_size);
            group.set_step(at.step + 1);

            const double lr = s.lr_at(at, loader);
            now.data<float>()[0] = float(lr), now.data<float>()[1] = float(at.step + 1);
            rate_and_step.copy_from(now);
            gradient_sum.begin(share);
            const std::span<const Tensor> out =
                on_device ? learn({batch.indices, batch.views, batch.labels, batch.targets}, true)
                          : learn({batch.x, batch.labels, batch.targets}, true);
            gradient_sum.finish(); // first: what is read next, a device has to be done for
            const Tensor scores = out[0].to_host(), loss = out[1].to_host();

            double sums[] = {share > 0 ? share * double(loss.data<float>()[0]) : 0,
                             double(count_correct(scores, batch.labels)), double(run.asked_to_stop()),
                             double(!loader.has_next())};
            aggregate_state(group, parameters, share, sums);
            ++parameters.batches_tracked;
            result.stopped = sums[2] > 0, all_have_data = sums[3] == 0;

            if (group.size() > 1) loss_of_all.fill(sums[0]), update(loss_of_all);
            if (run.judge(at, sums[0], found) == Verdict::rolled_back) break;

            run.step(at, {batch.global_size, sums[0], sums[1], lr});
            if (run.due(at)) run.save_checkpoint(at, parameters, adam);
        }
    };
    const auto test = [&] {
        const Stopwatch stopwatch(result.test_seconds);
        double sums[3] = {0, 0, 0}; // loss, correct, squared errors of the angles
        Predictions predictions(data.test.count);
        for (test_loader.start(1); test_loader.has_next();) {
            trial.pulse();
            const data::Batch batch = test_loader.next();
            const int64_t n = batch.labels.extent(0);
            if (n == 0) continue;
            const std::span<const Tensor> out = on_device ? predict({batch.indices, batch.views}) : predict({batch.x});
            const Tensor scores = out[0].to_host(), angles = out[1].to_host();
            const double squares = squared_errors(angles, batch.targets);
            sums[0] += double(n) * host_cross_entropy(scores, batch.labels) + kAngleWeight * squares;
            sums[1] += double(count_correct(scores, batch.labels));
            sums[2] += squares;
            const data::Range mine = workers.share_of(batch.global_size);
            predictions.add(batch.index * s.batch_size + mine.begin, scores);
        }
        group.allreduce_sum(std::span<double>(sums), "test");
        const double count = double(data.test.count);
        result.accuracy = sums[1] / count;
        result.rmse = std::sqrt(sums[2] / count);
        return Score{sums[0] / count, result.accuracy, predictions.gather(group)};
    };

    while (at.step < length.steps && !result.stopped) {
        run.begin_epoch(at);
        result.stopped = !group.all(!run.asked_to_stop(), "go on");
        train_epoch();
        Score score;
        if (at.batch == loader.batches()) { // else stopped on the way: `at` is where to go on
            par::verify_identical(group, parameters.values().to_host().span<float>(), "parameters");
            score = test();
            const std::string name = run.tested + "_angle_rmse", text = run.tested + " angle rmse %.2f deg";
            run.end_epoch(at, score, {{name.c_str(), text.c_str(), result.rmse}});
            result.stopped = !group.all(!run.asked_to_stop(), "go on");
        }
        run.save_model(parameters);
        run.save_checkpoint(at, parameters, adam);
        if (!score.predictions.empty()) run.report("confusion", report_confusion(data.test, score.predictions));
    }
    if (length.steps == 0) run.save_model(parameters);
    result.train_hits = learn.hit_rate(), result.test_hits = predict.hit_rate();
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
    result.code = run.end(at, result.stopped);
    return result;
}

Result train(Settings& s, Options& options, par::Group& group, Trial& trial, data::TrainTest& data,
             const Result* accelerated = nullptr) {
    TrainingRun run("train_digits_angles", s.run, options, group, trial,
                    {"batch-size", "validation", "shuffle", "augment", "seed", "init"});
    std::optional<Result> result; // none if loading was stopped
    const int code = run.attempt([&] {
        result = train(run, s, options, group, trial, data, accelerated);
        return result->code;
    });
    return result ? *result : Result{.stopped = true, .code = code};
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

int train_and_compare(Settings& s, Options& options, par::Group& group, Trial& trial) {
    const bool can_compare = trial.alone() && s.machine.accelerate;
    RG_CHECK(s.machine.accelerate || !s.compare || !options.given("compare"),
             "train_digits_angles: --compare trains accelerated and op by op: not with --no-accelerate");
    const bool compare = s.compare && can_compare && !s.run.resume;
    const std::string plain_name = s.run.name.empty() ? "" : s.run.name + "-plain";
    RG_CHECK(!compare || plain_name.empty() || !std::filesystem::exists(s.run.runs + "/" + plain_name),
             "train_digits_angles: the run ", s.run.runs, "/", plain_name,
             " exists already; give another --run-name, or --no-compare");
    const int64_t batch_size = s.batch_size; // train() may change it
    data::TrainTest data;
    const Result accelerated = train(s, options, group, trial, data);
    if (s.compare && can_compare && s.run.resume && group.rank() == 0)
        std::cout << "not compared with a training op by op: --resume has gone on with this one alone" << std::endl;
    if (!compare || accelerated.stopped) return accelerated.code;
    s.run.name = plain_name;
    s.batch_size = batch_size;
    s.machine.accelerate = false;
    const Result plain = train(s, options, group, trial, data, &accelerated);
    if (group.rank() == 0 && !plain.stopped) std::cout << chart(bars_of(plain, accelerated));
    return plain.code;
}

} // namespace

Json rg::check_train_digits_angles(const std::vector<std::string>& args) {
    Settings settings;
    Options options("train_digits_angles", "");
    settings.declare(options);
    options.parse(args);
    return options.to_json();
}

void rg::check_data_train_digits_angles(par::Group& group, const std::vector<std::string>& args) {
    Settings settings;
    Options options("train_digits_angles", "");
    settings.declare(options);
    options.parse(args);
    load(settings, group, {});
}

int rg::train_digits_angles(par::Group& group, const std::vector<std::string>& args, Trial& trial) {
    Settings settings;
    Options options("train_digits_angles", "trains a network to tell digits and the angles that they are turned by");
    settings.declare(options);
    if (!options.parse(args)) {
        if (group.rank() == 0) std::cout << options.help();
        return 0;
    }
    return train_and_compare(settings, options, group, trial);
}

#ifndef RG_NO_MAIN // the programs that run this one's trainings have one of their own
int main(int argc, char** argv) {
    return par::run_ranks_main(argc, argv, [&](par::Group& group) {
        Trial trial;
        return train_digits_angles(group, {argv + 1, argv + argc}, trial);
    });
}
#endif
