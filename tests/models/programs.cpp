// Tests the training programs as trials: the files that they save, and data that they reject.
#include "tools/write_digits.h"
#include "core/atomic_file.h"
#include "data/augment.h"
#include "data/digits.h"
#include "data/open.h"
#include "data/png.h"
#include "models/programs.h"
#include "models/run/onnx.h"
#include "models/run/predictor.h"
#include "models/run/training.h"
#include "tests/temp_dir.h"
#include "tests/thread_link.h"

#include <cmath>
#include <doctest/doctest.h>
#include <filesystem>
#include <set>
#include <sstream>

namespace rg {
namespace {

class QuietObserver final : public TrainingObserver {
public:
    bool standalone() const override { return false; }
};

/// Trains in the run folder `name`. Returns the exit code.
int train(const Program& program, const TempDir& folder, const std::string& name, std::vector<std::string> args,
          int ranks = 1) {
    args.insert(args.end(),
                {"--runs=" + folder.path(), "--run-name=" + name, "--device=cpu", "--threads=1", "--precision=fp32"});
    int code = -1;
    par::run_groups(ranks, [&](par::Group& group) {
        QuietObserver observer;
        const int own = program.run(group, args, observer);
        if (group.rank() == 0) code = own;
    });
    return code;
}

/// A network with dropout, and its training.
struct DropoutNetwork final : Network {
    Dropout drop;
    Dense fc;
    DropoutNetwork(const ImageTask& task, float probability)
        : drop(parameters, probability), fc(parameters, "fc", task.classes, task.height * task.width * task.channels) {
        parameters.allocate(task.seed, Init::he);
    }
    Tensor forward(const Tensor& x, Mode mode) const override { return fc(drop(x, mode)); }
};
struct DropoutNetworks final : NetworkFamily {
    double probability = 0.5;
    DropoutNetworks() : NetworkFamily({"dropout"}) {}
    void declare(Options& o) override { o.add("dropout", &probability, "probability").range(0, 0.9); }
    std::unique_ptr<Network> make(const std::string&, const ImageTask& task) const override {
        return std::make_unique<DropoutNetwork>(task, float(probability));
    }
};
const RegisterNetworks<DropoutNetworks> dropout_networks;
struct DropoutTraining final : ImageTraining {
    DropoutTraining() : ImageTraining({"dropout"}) {}
};
constexpr Program kDropout{"dropout", "trains with dropout", make_training<DropoutTraining>};

/// A network that takes images and numbers, and its training.
struct NumbersNetwork final : Network {
    Dense fc;
    explicit NumbersNetwork(const ImageTask& task)
        : fc(parameters, "fc", task.classes, task.height * task.width * task.channels + task.targets) {
        parameters.allocate(task.seed, Init::he);
    }
    std::vector<Tensor> outputs(const Tensor& x, const Tensor& numbers, Mode) const override {
        return {fc(concat({x.reshape({x.extent(0), x.numel() / x.extent(0)}), numbers}))};
    }
};
const RegisterNetwork<NumbersNetwork> numbers_network("takes-numbers");
struct NumbersTraining final : ImageTraining {
    NumbersTraining() : ImageTraining({"takes-numbers"}) { takes_numbers = true; }
};
/// A network with two heads for the same classes, and its training.
struct TwoHeads final : Network {
    Dense fc, other;
    explicit TwoHeads(const ImageTask& task)
        : fc(parameters, "fc", task.classes, task.height * task.width * task.channels),
          other(parameters, "other", task.classes, task.height * task.width * task.channels) {
        parameters.allocate(task.seed, Init::he);
    }
    std::vector<Tensor> outputs(const Tensor& x, Mode) const override { return {fc(x), other(x)}; }
};
const RegisterNetwork<TwoHeads> two_heads("two-heads");
struct TwoHeadsTraining final : ImageTraining {
    TwoHeadsTraining() : ImageTraining({"two-heads"}) {}
    Task task(const data::ImageSet&) const override {
        Task second = classification(0, 1);
        second.metrics[0].name = "second_accuracy";
        return classification().with(second, 0.3);
    }
};
constexpr Program kTwoHeads{"two_heads", "trains two heads", make_training<TwoHeadsTraining>};

constexpr Program kNumbers{"numbers", "trains with numbers", make_training<NumbersTraining>};

/// A linear network that learns numbers, and its training.
struct LinearNetwork final : Network {
    Dense fc;
    explicit LinearNetwork(const ImageTask& task)
        : fc(parameters, "fc", task.targets, task.height * task.width * task.channels) {
        parameters.allocate(task.seed, Init::he);
    }
    Tensor forward(const Tensor& x, Mode) const override { return fc(x); }
};
const RegisterNetwork<LinearNetwork> linear_network("linear");
struct LinearTraining final : ImageTraining {
    LinearTraining() : ImageTraining({"linear"}) { optimizer.kind = OptimizerKind::adam, has_smoothing = false; }
    data::Labels labels() const override { return data::Labels::numbers; }
    Task task(const data::ImageSet& images) const override {
        std::vector<TargetInfo> targets;
        for (const std::string& name : images.target_names) targets.push_back({name});
        return regression(targets);
    }
};
constexpr Program kLinear{"linear", "learns numbers", make_training<LinearTraining>};
/// A classifier whose images have a further value each.
struct ColumnTraining final : ImageTraining {
    ColumnTraining() : ImageTraining({"dropout"}) {}
    std::vector<data::Column> columns(const data::ImageSet& images) const override {
        return {data::rows(Tensor::zeros({images.count, 1}))};
    }
};
constexpr Program kColumn{"column", "has a column", make_training<ColumnTraining>};

/// A program that loads its own images. With a seed other than 0, it forgets those for tests.
struct OwnDataTraining final : ImageTraining {
    OwnDataTraining() : ImageTraining({"dropout"}) {}
    data::TrainTest load(par::Group&, const std::function<void()>&) const override {
        return {data::draw_digits(4, 1), data_options.seed == 0 ? data::draw_digits(2, 2) : data::ImageSet(),
                "own images"};
    }
};
constexpr Program kOwnData{"own_data", "has its own images", make_training<OwnDataTraining>};

/// Writes 40 grey images, and a table with their brightness in `unit`, plus `shift`, and a constant.
void write_brightness(const std::string& folder, double unit, double shift = 0) {
    std::filesystem::create_directories(folder);
    std::string table = "file,brightness,constant\n";
    for (int i = 0; i < 40; ++i) {
        const int value = 20 + 53 * i % 200;
        write_file_atomic(folder + cat("/", i, ".png"), [&] {
            const std::vector<uint8_t> png = data::encode_png(2, 2, 1, std::vector<uint8_t>(4, uint8_t(value)));
            return std::string(png.begin(), png.end());
        }());
        table += cat(i, ".png,", unit * value + shift, ",7\n");
    }
    write_file_atomic(folder + "/labels.csv", table);
}

/// Returns the predictions of a model of numbers for the test images of a set.
std::vector<float> predictions(const std::string& run, const std::string& set) {
    Predictor model(run);
    const data::LoadOptions options{.channels = int(model.task.channels), .seed = 3, .labels = data::Labels::numbers};
    const data::ImageSet test = data::load(set, options).test;
    std::vector<float> values;
    for (const Tensor& target : model.predict(data::copy_pixels(test, 0, test.count)).targets)
        values.insert(values.end(), target.span<float>().begin(), target.span<float>().end());
    return values;
}

/// Returns the losses of the steps of a run.
std::vector<double> losses(const std::string& run) {
    std::vector<double> values;
    std::istringstream lines(read_file(run + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);)
        if (const Json json = Json::parse(line, run); json.find("step") && json.find("loss"))
            values.push_back(json.at("loss").as_double());
    return values;
}

TEST_SUITE("models") {
    TEST_CASE("defaults: mini-batches, their rest and drops follow the number of images and of epochs") {
        Options empty("", "");
        const auto batch_for = [](int64_t images, int gpus = 0, bool per_gpu = false) {
            TrainingOptions options;
            options.batch_size_per_gpu = per_gpu;
            options.data_options.batch_size = 256;
            options.fit_batch_size(images, {.gpus = gpus});
            return options.data_options.batch_size;
        };
        CHECK(batch_for(50000) == 256);
        CHECK(batch_for(4096) == 256);
        CHECK(batch_for(4095) == 128);
        CHECK(batch_for(600) == 32);
        CHECK(batch_for(20) == 8);
        CHECK(batch_for(50000, 4) == 1024);
        CHECK(batch_for(600, 0, true) == 256);
        CHECK(batch_for(600, 4, true) == 1024); // as --preset matlab

        TrainingOptions options;
        options.data_options.batch_size = 32;
        const auto keeps = [&](int64_t images) {
            return options.loader_options({.count = images}, {}, classification()).keep_partial;
        };
        CHECK(keeps(64 + 16));
        CHECK(!keeps(64 + 15));
        CHECK(!keeps(64));
        CHECK(keeps(15)); // less than a mini-batch
        options.partial = TrainingOptions::Partial::discard;
        CHECK(!keeps(64 + 31));

        options.schedule.kind = ScheduleKind::piecewise;
        const auto drops = [&](int64_t epochs, const std::string& text, double every = 0) {
            options.epochs = epochs, options.drops = text, options.drop_every = every;
            return options.full_schedule().drops;
        };
        CHECK(drops(50, "0.9") == std::vector<double>{45});
        CHECK(drops(4, "0.5,3") == std::vector<double>{2, 3});
        CHECK(drops(100, "0.9", 45) == std::vector<double>{45, 90});
        CHECK(drops(8, "0.9", 0.25) == std::vector<double>{2, 4, 6});
        CHECK(drops(100, "0.07,0.55") == std::vector<double>{7, 55});
        CHECK_ERROR("--drop-every: expected at most 10000 drops", drops(2, "0.9", 1e-14));
        CHECK_ERROR("got 25 after 30", drops(50, "30,0.5"));
        options.drops = "0.9";
        CHECK(options.full_schedule().base == doctest::Approx(0.1 * 32 / 256)); // the default rate follows the size
    }

    TEST_CASE("train_digits_angles: the saved model returns degrees") {
        const TempDir dir;
        data::write_digits(dir / "set", data::draw_digits(20, 1));
        CHECK(train(train_digits_angles, dir, "a",
                    {"--data=" + dir / "set", "--epochs=6", "--batch-size=16", "--seed=3"}) == 0);
        const std::string metrics = read_file(dir / "a/metrics.jsonl");
        const size_t last = metrics.rfind("{\"epoch\"");
        const double rmse = Json::parse(metrics.substr(last, metrics.find('\n', last) - last), "metrics")
                                .at("test_angle_rmse")
                                .as_double();
        CHECK(rmse < 20); // a model that always returns 0 degrees has 26

        const data::ImageSet test = data::load(dir / "set", {.channels = 1, .test_fraction = 0.1, .seed = 3}).test;
        const data::Augmenter view(28, 28, 1, {}, data::kDigits);
        const Tensor x = Tensor::empty_on_host({test.count, 28, 28, 1});
        for (int64_t i = 0; i < test.count; ++i) view.apply(test.image(i), view.view(0, 0, i), x.data<float>() + i * 784);
        const TensorFile file = load_model(dir / "a");
        CHECK(file.text("targets") == R"([{"name": "angle", "unit": "degrees"}])");
        const Tensor degrees = make_network(file)->outputs(x, Mode::evaluate)[1];
        double squares = 0;
        for (size_t i = 0; i < test.targets.size(); ++i)
            squares += std::pow(double(degrees.span<float>()[i]) - double(test.targets[i]), 2);
        CHECK(std::sqrt(squares / double(test.count)) == doctest::Approx(rmse).epsilon(1e-3));
    }

    TEST_CASE("regression: does not depend on the units of its targets, which its metrics and predictions have") {
        const TempDir dir;
        const auto last_of = [&](const std::string& run, const char* key) {
            const std::string text = read_file(dir / run + "/metrics.jsonl");
            const size_t last = text.rfind("{\"epoch\"");
            return Json::parse(text.substr(last, text.find('\n', last) - last), "metrics").at(key).as_double();
        };
        std::vector<float> first;
        double rmse = 0;
        for (const double unit : {1.0, 0.001, 1e6}) {
            const std::string run = cat("run-", unit), set = dir / cat("set-", unit);
            write_brightness(set, unit, 1000 * unit);
            for (const int ranks : {1, 3}) {
                const std::vector<std::string> args{"--data=" + set, "--epochs=10", "--batch-size=8", "--seed=3",
                                                    "--lr=0.02", "--workers=3"};
                REQUIRE(train(kLinear, dir, cat(run, "-", ranks), args, ranks) == 0);
                const std::vector<float> values = predictions(dir / cat(run, "-", ranks), set);
                if (first.empty()) first = values, rmse = last_of(run + "-1", "test_brightness_rmse");
                REQUIRE(values.size() == 16);
                for (size_t i = 0; i < 8; ++i) {
                    CHECK(double(values[i]) == doctest::Approx(unit * double(first[i])).epsilon(1e-3));
                    CHECK(values[8 + i] == doctest::Approx(7).epsilon(1e-2)); // a constant divides by no deviation of 0
                }
                CHECK(last_of(cat(run, "-", ranks), "test_brightness_rmse") == doctest::Approx(unit * rmse).epsilon(0.02));
            }
        }
        CHECK(rmse < 10); // the mean has 58

        // A run that starts from another one predicts as that one, whatever its own numbers are, until it trains.
        write_brightness(dir / "other", 5, 3);
        const std::string other = "--data=" + dir / "other", init = "--init=" + dir / "run-1-1";
        REQUIRE(train(kLinear, dir, "same", {other, init, "--steps=0", "--seed=3"}) == 0);
        CHECK(predictions(dir / "same", dir / "set-1") == first);
        CHECK(load_model(dir / "same").text("targets") == load_model(dir / "run-1-1").text("targets"));
        CHECK(load_model(dir / "same").text("normalise") == load_model(dir / "run-1-1").text("normalise"));
        REQUIRE(train(kLinear, dir, "new", {other, init, "--init-skip=fc", "--normalise=none", "--steps=0"}) == 0);
        CHECK(load_model(dir / "new").text("targets") != load_model(dir / "run-1-1").text("targets"));
        CHECK(stored_normalise(load_model(dir / "new"), data::kImageNet).mean[0] == 0);
        // The output of one number must not become that of another.
        std::string table = read_file(dir / "other/labels.csv");
        write_file_atomic(dir / "other/labels.csv", table.replace(table.find("brightness"), 10, "darkness"));
        CHECK_ERROR("--init: expected the numbers or labels of", train(kLinear, dir, "a", {other, init, "--steps=0"}));
        CHECK_ERROR("number 1 is brightness, got darkness; omit their layer by --init-skip",
                    train(kLinear, dir, "b", {other, init, "--steps=0"}));
    }

    TEST_CASE("augment: only images with one class each are changed without an option") {
        const TempDir dir;
        data::write_digits(dir / "set", data::draw_digits(4, 1));
        write_brightness(dir / "table", 1);
        const auto augment_of = [&](const Program& program, const char* set, const char* option) {
            const std::string run = cat(program.name, "-", option);
            std::vector<std::string> args{"--data=" + dir / set, "--steps=0"};
            if (*option) args.push_back(option);
            REQUIRE(train(program, dir, run, args) == 0);
            return Json::parse(read_file(dir / run + "/config.json"), "config").at("options").at("augment").as_string();
        };
        CHECK(augment_of(kDropout, "set", "") == "flip,translate");
        for (const auto& [program, set] : {std::pair(&kNumbers, "set"), {&kColumn, "set"}, {&kLinear, "table"}}) {
            CHECK(augment_of(*program, set, "") == "none");
            CHECK(augment_of(*program, set, "--augment=flip") == "flip");
        }
    }

    TEST_CASE("data: tells of a single class, and of images in both sets") {
        const TempDir dir;
        const data::TrainTest digits{data::draw_digits(4, 1), {}, ""};
        data::write_digits(dir / "set", digits.train);
        const auto warnings_of = [&](const std::vector<std::string>& args) {
            par::SingleLink link;
            par::Group group(link);
            std::string all;
            for (const std::string& warning : kDropout.check_data(group, args).warnings) all += warning + "\n";
            return all;
        };
        CHECK(warnings_of({"--data=" + dir / "set"}).empty());
        CHECK(contains(warnings_of({"--data=" + dir / "set", "--test-data=" + dir / "set"}),
                       "warning: 40 of the 40 images for tests, such as 0/"));
        std::filesystem::create_directories(dir / "one");
        std::filesystem::rename(dir / "set/0", dir / "one/0");
        CHECK(contains(warnings_of({"--data=" + dir / "one"}), "warning: all images have one class, 0,"));
    }

    TEST_CASE("data: validation images are held out from sets that a program loads itself, too") {
        par::SingleLink link;
        par::Group group(link);
        const Json sets = kOwnData.check_data(group, {"--validation=0.5"}).sets;
        CHECK(sets.find("validation set"));
        CHECK(sets.find("test set"));
        CHECK_ERROR("expected images for tests, got none in own images", kOwnData.check_data(group, {"--seed=1"}));
    }

    TEST_CASE("resume: takes the arguments of the run again, also those that the training has replaced") {
        const TempDir dir;
        data::write_digits(dir / "set", data::draw_digits(4, 1));
        CHECK(train(kDropout, dir, "run", {"--data=" + dir / "set", "--augment=auto", "--steps=1"}) == 0);
        CHECK(train(kDropout, dir, "run", {"--data=" + dir / "set", "--augment=auto", "--steps=2", "--resume"}) == 0);
    }

    TEST_CASE("predict: tests a run without its GPUs, and not in the mini-batches of all its ranks") {
        const TempDir dir;
        data::write_digits(dir / "set", data::draw_digits(200, 1));
        REQUIRE(train(kDropout, dir, "run", {"--data=" + dir / "set", "--batch-size=1000", "--steps=0"}) == 0);
        Json config = Json::parse(read_file(dir / "run/config.json"), "config");
        Json options = config.at("options");
        config.set("options", options.set("device", "cpu").set("gpus", "0"));
        write_file_atomic(dir / "run/config.json", config.dump());
        par::SingleLink link;
        par::Group group(link);
        const auto peak = [&](const Json& given) {
            release_free_blocks(), reset_peak_bytes();
            CHECK(kDropout.test_run(group, dir / "run", given).images.count == 400);
            return peak_bytes();
        };
        const Json on_cpu = Json::object().set("device", "cpu");
        CHECK(peak(on_cpu) < peak(Json(on_cpu).set("batch-size", "400")));
    }

    TEST_CASE("options: those of other programs get a hint in each training program") {
        const std::pair<const char*, const char*> hints[] = {
            {"ValidationFrequency", "validate-every"}, {"Plots", "report"}, {"Verbose", "progress"},
            {"LearnRateDropPeriod", "drop-every"}, {"LearnRateDropFactor", "drop-factor"}, {"InitialLearnRate", "lr"},
            {"MiniBatchSize", "batch-size"}, {"ExecutionEnvironment", "device"}, {"num_workers", "threads"},
            {"gradient_clip_val", "clip"}, {"class_weight", "class-weights"}, {"log_every_n_steps", "progress"},
            {"milestones", "drops"}, {"model-ema", "average"}, {"imgsz", "size"}, {"tta", "test-views"}};
        for (const auto& [theirs, ours] : hints)
            CHECK(error_of([option = cat("--", theirs)] { (void)train_cifar.check({option, "1"}); }) ==
                  cat("unknown option --", theirs, "; did you mean --", ours, "?"));
    }

    TEST_CASE("numbers: a network that takes them beside images predicts as its training tests") {
        const TempDir dir;
        data::write_digits(dir / "set", data::draw_digits(20, 1));
        CHECK(train(kNumbers, dir, "a", {"--data=" + dir / "set", "--steps=20", "--batch-size=16", "--seed=3"}) == 0);
        const TensorFile file = load_model(dir / "a");
        CHECK(file.text("input_numbers") == R"(["angle"])");

        Predictor model(file);
        const int64_t channels = model.task.channels;
        const data::ImageSet test = data::load(dir / "set", {.channels = int(channels), .seed = 3}).test;
        CHECK(model.outputs.input_numbers == std::vector<std::string>{"angle"});
        const std::vector<uint8_t> pixels = data::copy_pixels(test, 0, test.count);
        const Tensor scores = model.predict(pixels, test.targets).scores;
        const std::vector<float> zeros(test.targets.size());
        CHECK(!std::ranges::equal(scores.span<float>(), model.predict(pixels, zeros).scores.span<float>()));
        const data::Augmenter view(28, 28, channels, {}, stored_normalise(file, {}));
        const Tensor x = Tensor::empty_on_host({test.count, 28, 28, channels});
        for (int64_t i = 0; i < test.count; ++i) view.apply(test.image(i), view.view(0, 0, i), x.data<float>() + i * 784 * channels);
        const std::unique_ptr<Network> network = make_network(file);
        const Tensor numbers = Tensor::of<float>({test.count, 1}, test.targets);
        const Tensor expected = softmax(network->outputs(x, numbers, Mode::evaluate)[0]);
        for (int64_t i = 0; i < scores.numel(); ++i)
            CHECK(scores.data<float>()[i] == doctest::Approx(expected.data<float>()[i]).epsilon(1e-4));

        CHECK(error_of([&] { model.predict(pixels); }) ==
              "predict: expected 1 numbers for each of 40 images, got 0; give those of outputs.input_numbers");
        CHECK_ERROR("give it the numbers that it takes, too", network->outputs(x, Mode::evaluate));
        CHECK_ERROR("--data: expected a folder with angles.csv, got ", train(kNumbers, dir, "b", {"--steps=1"}));
        const ImageTask task{.height = 28, .width = 28, .channels = channels, .classes = 10};
        CHECK_ERROR("give it no numbers", DropoutNetwork(task, 0.5f).outputs(x, numbers, Mode::evaluate));
        TensorFile wrong = file;
        for (auto& [key, text] : wrong.metadata)
            if (key == "input_numbers") text = "[";
        CHECK_ERROR("input_numbers", stored_outputs(wrong));
    }

    TEST_CASE("two heads: of two scores for the same classes, a prediction has the first, and a file both") {
        const TempDir dir;
        data::write_digits(dir / "set", data::draw_digits(4, 1));
        CHECK(train(kTwoHeads, dir, "a", {"--data=" + dir / "set", "--steps=1", "--batch-size=8"}) == 0);
        const TensorFile file = load_model(dir / "a");
        Predictor model(file);
        const std::vector<uint8_t> pixels(28 * 28 * size_t(model.task.channels), 100);
        const Predictor::Predictions outputs = model.predict(pixels);
        CHECK(outputs.scores.shape() == Shape{1, 10});
        CHECK(outputs.targets.empty());
        CHECK_NOTHROW(save_onnx(dir / "a.onnx", file));
        const std::string onnx = read_file(dir / "a.onnx");
        CHECK(contains(onnx, "scores_1"));
        CHECK(contains(onnx, "scores_2"));
    }

    TEST_CASE("model: the folder of a trial stands for its last epoch, that of another run for its best one") {
        const TempDir dir;
        for (const char* const run : {"run", "sweep/trials/1"}) {
            std::filesystem::create_directories(dir / run);
            for (const char* const name : {"model.safetensors", "model-best.safetensors"})
                write_file_atomic(cat(dir / run, "/", name), "");
            write_file_atomic(cat(dir / run, "/config.json"), R"({"options": {"validation": 0.1}})");
        }
        write_file_atomic(dir / "sweep/journal.jsonl", "");
        CHECK(model_path(dir / "run") == dir / "run/model-best.safetensors");
        CHECK(model_path(dir / "sweep/trials/1") == dir / "sweep/trials/1/model.safetensors");
    }

    TEST_CASE("dropout: a training drops other values in each step, the same ones again after a resume") {
        const TempDir dir;
        data::write_digits(dir / "set", data::draw_digits(4, 1));
        // The same images in each step, and updates that round to nothing: only the dropped values change the loss.
        const std::vector<std::string> args = {"--data=" + dir / "set", "--batch-size=30", "--shuffle=never",
                                               "--augment=none",        "--lr=1e-30",      "--workers=2"};
        const auto with = [&](std::vector<std::string> more) {
            more.insert(more.begin(), args.begin(), args.end());
            return more;
        };
        CHECK(train(kDropout, dir, "a", with({"--steps=4"})) == 0);
        const std::vector<double> whole = losses(dir / "a");
        REQUIRE(whole.size() == 4);
        CHECK(std::set(whole.begin(), whole.end()).size() == 4);
        CHECK(train(kDropout, dir, "b", with({"--steps=2"})) == 0);
        CHECK(train(kDropout, dir, "b", {"--resume", "--steps=4"}) == 0);
        CHECK(losses(dir / "b") == whole);
        CHECK(train(kDropout, dir, "c", with({"--steps=4"}), 2) == 0);
        CHECK(losses(dir / "c") == whole);

        const std::string error = error_of([&] { train(kDropout, dir, "b", {"--resume", "--dropout=0.2"}); });
        CHECK(contains(error, "--resume: expected --dropout 0.5"));
    }
}

} // namespace
} // namespace rg
