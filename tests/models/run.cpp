// Tests the files and the output of a run, and stop requests.
#include "core/atomic_file.h"
#include "core/text.h"
#include "models/run/load_data.h"
#include "models/run/progress.h"
#include "models/run/report.h"
#include "models/run/run_folder.h"
#include "models/run/signals.h"
#include "models/run/training_run.h"
#include "par/verify.h"
#include "tests/temp_dir.h"
#include "tests/thread_link.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <doctest/doctest.h>
#include <fstream>
#include <limits>
#include <sstream>
#include <sys/wait.h>
#include <unistd.h>

namespace fs = std::filesystem;

namespace rg {
namespace {

Json step_line(int64_t step, int64_t epoch) {
    return Json().set("step", step).set("epoch", epoch).set("loss", 1.0 / double(step)).set("lr", 0.1);
}

Json train_line(int64_t epoch) { return Json().set("epoch", epoch).set("train_loss", 0.5 / double(epoch)); }

/// Logs the steps [from, to] of a training with 4 steps per epoch, and the epochs that end within them.
void train(RunFolder& run, int64_t from, int64_t to) {
    for (int64_t step = from; step <= to; ++step) {
        run.log(step_line(step, (step - 1) / 4 + 1));
        if (step % 4 == 2) run.log(Json().set("step", step).set("epoch", step / 4 + 1).set("validation_loss", 0.25));
        if (step % 4 == 0) run.log(train_line(step / 4));
    }
}

/// Makes a finished run with one checkpoint file of this age in seconds.
void add_run(const std::string& root, const std::string& program, const std::string& name, int age) {
    RunFolder run = RunFolder::create(root, program, name);
    run.write_config(Json().set("program", program));
    fs::create_directory(run.checkpoint_path());
    std::ofstream(run.checkpoint_path() + "/step-00000001.safetensors") << "x";
    fs::last_write_time(run.checkpoint_path() + "/step-00000001.safetensors",
                        fs::file_time_type::clock::now() - std::chrono::seconds(age));
}

/// A trial of a sweep, which prints nothing.
struct SilentTrial final : TrainingObserver {
    bool standalone() const override { return false; }
};

/// Returns the status before the first step of an epoch of which this many steps are left.
StepStatus first_step(int64_t epoch_left) {
    return {.epoch = 1, .epochs = 2, .step = 0, .steps = 80, .metrics = {"loss 1.000", "acc 50.0 %"}, .samples = 256,
            .epoch_left = epoch_left};
}

} // namespace

TEST_SUITE("models") {
    TEST_CASE("run: counts the epochs that its steps begin, up to the largest number of steps") {
        constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
        const TempDir dir;
        RunOptions settings;
        settings.runs = dir.path();
        Options options("loop", "");
        par::SingleLink link;
        par::Group group(link);
        const auto epochs_of = [&](int64_t steps, int64_t batches, RunPosition at) {
            SilentTrial trial;
            RunLog log(settings, options, group, trial);
            log.position = at;
            log.begin({.steps = steps, .steps_per_epoch = batches});
            return log.epochs();
        };
        for (const auto& [steps, batches, epochs] : {std::array<int64_t, 3>{0, 8, 1}, {1, 8, 1}, {8, 8, 1}, {9, 8, 2},
                                                     {kMost, 8, (kMost - 7) / 8 + 1}, {kMost, 1, kMost}})
            CHECK(epochs_of(steps, batches, {}) == epochs);
        CHECK(epochs_of(20, 5, {.epoch = 3, .batch = 2, .step = 12}) == 4);
        CHECK(epochs_of(26, 3, {.epoch = 3, .batch = 0, .step = 20}) == 4); // earlier epochs had 10 steps
        CHECK(epochs_of(20, 3, {.epoch = 3, .batch = 0, .step = 20}) == 2);
        const StepStatus status{1, kMost, 1, kMost, {"loss 1.000"}, 1, kMost};
        CHECK(contains(step_text(status, 1, 1e30, 200), "left 277777777777h46m/277777777777h46m"));
    }

    TEST_CASE("run log: a loop of one's own has epochs, results, stop requests and an end") {
        const TempDir dir;
        RunOptions settings;
        settings.runs = dir.path(), settings.name = "run";
        Options options("loop", "");
        const RunLog::Info info{.metrics = {{.name = "rmse", .unit = "cm"}}, .steps = 6, .steps_per_epoch = 3};
        const auto report = [&] { return read_report(dir / "run/report.html").at("runs").as_array().at(0); };
        const auto lines = [&] {
            std::vector<std::string> all = split(read_file(dir / "run/metrics.jsonl"), '\n');
            all.pop_back();
            for (std::string& line : all) line = line.substr(0, line.find(", \"samples_per_s\""));
            return all;
        };
        par::run_groups(2, [&](par::Group& group) {
            SilentTrial trial;
            RunLog log(settings, options, group, trial);
            log.begin(info);
            while (log.goes_on()) {
                log.step({{"rmse", double(log.position.step)}, {"lr", 0.5}}, log.position.step == 0 ? 3 : 1);
                if (log.epoch_is_complete()) log.end_epoch({{"test_rmse", 9}});
            }
            log.result({{"accuracy", 0.75}});
            CHECK(log.end() == 0);
        });
        CHECK(lines()[0] == R"({"step": 1, "epoch": 1, "rmse": 0.0, "lr": 0.5})");
        CHECK(lines()[3] == R"({"epoch": 1, "train_rmse": 0.6, "test_rmse": 9.0)"); // (3 * 0 + 1 + 2) / 5
        CHECK(lines()[7] == R"({"epoch": 2, "train_rmse": 4.0, "test_rmse": 9.0)");
        CHECK(lines()[8] == R"({"end": "result", "accuracy": 0.75})");
        CHECK(report().at("state").as_string() == "done");
        CHECK(report().at("epochs").as_int() == 2);
        CHECK(report().at("config").at("metrics").as_array().at(0).at("unit").as_string() == "cm");

        const auto once = [&](const std::function<void(RunLog&)>& work) { // in place of a whole loop
            par::ThreadWorld world(1);
            par::Group group(world.link(0));
            SilentTrial trial;
            fs::remove_all(dir / "run");
            RunLog log(settings, options, group, trial);
            return log.supervise([&] {
                log.begin({.metrics = {{.name = "rmse"}}});
                work(log);
                return log.end();
            });
        };
        once([&](RunLog& log) { // without epochs, and without an end of its own
            log.step({{"rmse", 1}});
            std::ofstream(dir / "run/stop").put('x');
            CHECK_FALSE(log.goes_on());
        });
        CHECK(lines() == std::vector<std::string>{R"({"step": 1, "rmse": 1.0})"});
        CHECK(report().at("state").as_string() == "stopped");
        CHECK_ERROR("disk on fire", once([](RunLog&) { fail("disk on fire"); }));
        CHECK(report().at("state").as_string() == "failed");
        CHECK(report().at("note").as_string() == "disk on fire");
        CHECK_ERROR("expected a value of rmse, got none", once([](RunLog& log) { log.step({{"loss", 1}}); }));
        CHECK_ERROR("step 1: expected a finite rmse, got nan", once([](RunLog& log) { log.step({{"rmse", std::nan("")}}); }));
        CHECK_ERROR("step 1: expected finite gradients", once([](RunLog& log) {
                        log.step({{"rmse", 1}}, 1, Tensor::constant({}, 3, DType::i32)); // value 3 was not finite
                    }));
        CHECK_ERROR("expected a checkpoint with 1 sums of metrics, got 2", once([](RunLog& log) {
                        log.position.sums = {1, 2};
                        log.step({{"rmse", 1}});
                    }));
    }

    TEST_CASE("saver: refuses to save what it has not restored") {
        const TempDir dir;
        RunOptions settings;
        settings.runs = dir.path();
        Options options("loop", "");
        par::ThreadWorld world(1);
        par::Group group(world.link(0));
        SilentTrial trial;
        RunLog log(settings, options, group, trial);
        Saver saver(log);
        CHECK_ERROR("expected restore() before a file is saved", saver.save());
    }

    TEST_CASE("run: neither begins nor saves if the ranks differ") {
        const struct {
            const char* part;
            bool at_start;
            void (*change)(Parameters& parameters, const OptimizerState& optimizer);
            void (*save)(TrainingRun& run);
        } cases[] = {
            {"parameters", true, [](auto& p, auto&) { p.values().template data<float>()[1] += 1; }, {}},
            {"parameters", false, [](auto& p, auto&) { p.values().template data<float>()[1] = -0.0f; },
             [](auto& run) { run.save_model(); }},
            {"running statistics", false, [](auto& p, auto&) { p.state().template data<float>()[0] = 1; },
             [](auto& run) { run.keep_if_best({.metrics = {0.5}}); }},
            {"optimizer.velocity", false, [](auto&, auto& o) { o[0].value.template data<float>()[2] = 1; },
             [](auto& run) { run.saver.save_checkpoint(); }},
        };
        for (const auto& c : cases) {
            CAPTURE(c.part);
            const TempDir dir;
            std::vector<std::string> errors(2);
            par::run_groups(2, [&](par::Group& group) {
                Parameters parameters;
                parameters.add("fc.bias", {7}, Parameters::Entry::Start::zeros);
                parameters.add_state("bn", 3);
                parameters.allocate(1, Init::he);
                const OptimizerState optimizer{{"optimizer.velocity", Tensor::zeros(parameters.values().shape())}};
                TrainingRunOptions settings;
                settings.runs = dir.path(), settings.name = "run";
                Options options("toy", "");
                SilentTrial trial;
                const Task task = classification();
                TrainingRun run(settings, options, group, trial);
                try {
                    if (c.at_start && group.rank() == 1) c.change(parameters, optimizer);
                    run.restore(parameters, optimizer, task);
                    run.begin({.steps = 12, .steps_per_epoch = 4}, {});
                    if (group.rank() == 1) c.change(parameters, optimizer);
                    c.save(run);
                } catch (const par::RanksDiffer& error) {
                    errors[size_t(group.rank())] = error.what();
                }
            });
            for (const std::string& error : errors)
                CHECK(contains(error, cat("expected the same on all ranks, got ", c.part, " with checksum ")));
            CHECK(fs::exists(dir / "run") == !c.at_start);
            for (const char* file : {"model.safetensors", "model-best.safetensors", "checkpoint"})
                CHECK(!fs::exists(dir / cat("run/", file)));
        }
    }

    TEST_CASE("run: keeps no model whose metric is not finite, since no checkpoint could hold its value") {
        const TempDir dir;
        par::ThreadWorld world(1);
        par::Group group(world.link(0));
        Parameters parameters;
        parameters.add("fc.bias", {7}, Parameters::Entry::Start::zeros);
        parameters.allocate(1, Init::he);
        TrainingRunOptions settings;
        settings.runs = dir.path(), settings.name = "run", settings.patience_on = "loss";
        Options options("toy", "");
        SilentTrial trial;
        const Task task = classification();
        TrainingRun run(settings, options, group, trial);
        run.restore(parameters, {}, task);
        run.begin({.steps = 12, .steps_per_epoch = 4}, {});
        for (const double loss : {std::numeric_limits<double>::infinity(), std::nan("")}) {
            run.keep_if_best({.loss = loss, .metrics = {0.5}});
            CHECK(run.log.position.best_epoch == 0);
        }
        run.keep_if_best({.loss = 2, .metrics = {0.5}});
        CHECK(run.log.position.best == 2);
    }

    TEST_CASE("file writer: works in order, frees what it has written, and stops at the first error") {
        FileWriter writer;
        std::string done;
        auto copy = std::make_shared<int>();
        const std::weak_ptr<int> left = copy;
        const std::shared_future<void> first = writer.add([&done, copy = std::move(copy)] { done += "a"; });
        writer.add([&done] { done += "b"; });
        writer.finish();
        CHECK(done == "ab");
        CHECK((first.valid() && left.expired())); // although the future lives on
        writer.add([] { fail("disk full"); }).wait();
        writer.add([&done] { done += "c"; });
        CHECK_THROWS_WITH_AS(writer.check(), "disk full", Error);
        CHECK_THROWS_WITH_AS(writer.wait_for_room(), "disk full", Error);
        CHECK_THROWS_WITH_AS(writer.finish(), "disk full", Error);
        CHECK(done == "ab");
    }

    TEST_CASE("file writer: makes room by waiting for the oldest work") {
        FileWriter writer;
        std::promise<void> go_on;
        const std::shared_future<void> goes_on = go_on.get_future().share();
        std::vector<std::shared_future<void>> work;
        for (size_t i = 0; i < FileWriter::kMost; ++i) work.push_back(writer.add([goes_on] { goes_on.wait(); }));
        std::thread disk([&] { go_on.set_value(); });
        writer.wait_for_room();
        disk.join();
        CHECK(work.front().wait_for(std::chrono::seconds(0)) == std::future_status::ready);
    }

    TEST_CASE("training state: does not change with the training") {
        Parameters parameters;
        parameters.add("w", {2, 3}, Parameters::Entry::Start::random);
        parameters.add_state("norm", 2);
        parameters.allocate(1, Init::he);
        const OptimizerState optimizer{{"optimizer.velocity", Tensor::zeros({6})}};
        const Options options("program", "");
        const TensorFile state = training_state("program", parameters, optimizer, {}, options);
        for (const Tensor& changes : {parameters.values(), parameters.state(), optimizer[0].value}) changes.fill(7);
        for (const NamedTensor& tensor : state.tensors)
            if (tensor.value.dtype() == DType::f32)
                for (const float value : tensor.value.span<float>()) CHECK(value != 7);
    }

    TEST_CASE("training state: restores sums of metrics that were not finite") {
        Parameters parameters;
        parameters.add("w", {2, 3}, Parameters::Entry::Start::random);
        parameters.allocate(1, Init::he);
        const Options options("program", "");
        const RunPosition before{.epoch = 2, .batch = 3, .step = 7, .samples = 5, .sums = {1.5, std::nan("")}};
        const TensorFile state = training_state("program", parameters, {}, before, options);
        const RunPosition position = restore_training("program", state, parameters, {});
        CHECK(position.sums[0] == 1.5);
        CHECK(std::isnan(position.sums[1]));
        CHECK(position.samples == 5);
    }

    TEST_CASE("data options: images of the folder around that of an earlier run are known by their names") {
        data::TrainTest sets;
        sets.train.names = {"cat/1.png"};
        DataOptions later;
        later.follow({{}, {{"data", DataOptions().describe(sets, {}).dump()}}, "a model"});
        CHECK_FALSE(later.has_other_names(sets));
        sets.train.names = {"photos/cat/1.png"};
        CHECK(later.has_other_names(sets));
    }

    TEST_CASE("training state: restores the options of older runs") {
        Options options("program", "");
        TrainingRunOptions run;
        run.declare(options);
        restore_options({{}, {{"options", "{\"keep\": \"3\", \"on-nan\": \"rollback\"}"}}, "run/checkpoint/file"}, options);
        CHECK(run.keep == 3);
        CHECK(run.on_nan == OnNan::skip);
    }

    TEST_CASE("run folder: appends a full-precision line of metrics after each step and epoch") {
        TempDir dir;
        RunFolder run = RunFolder::create(dir / "runs", "train", "first");
        CHECK(run.path() == dir / "runs/first");
        CHECK(fs::status(run.path()).permissions() == fs::perms::owner_all);
        run.log(Json().set("step", 1).set("epoch", 1).set("loss", 1.0 / 3).set("lr", 0.1));
        CHECK(read_file(run.metrics_path()) ==
              "{\"step\": 1, \"epoch\": 1, \"loss\": 0.3333333333333333, \"lr\": 0.1}\n");
        run.log(train_line(1));
        run.sync();
        CHECK(read_file(run.metrics_path()).ends_with("\n{\"epoch\": 1, \"train_loss\": 0.5}\n"));
        run.write_config(Json().set("program", "train").set("seed", 7));
        CHECK(read_file(run.config_path()) == "{\n  \"program\": \"train\",\n  \"seed\": 7\n}\n");
    }

    TEST_CASE("run folder: the default of --runs is beside the build folder, or in the current folder") {
        TempDir dir;
        const fs::path before = fs::current_path();
        fs::create_directories(dir / "top/build/meson-private");
        fs::create_directories(dir / "top/build/tests");
        for (const auto& [current, expected] : {std::pair("top", "runs"),
                                                {"top/build", "../runs"},
                                                {"top/build/tests", "../../runs"},
                                                {"top/build/meson-private", "../../runs"}}) {
            fs::current_path(dir / current);
            CHECK(default_runs_folder() == std::string(expected));
        }
        fs::current_path(before);
    }

    TEST_CASE("run folder: rejects a second run of the same name") {
        TempDir dir;
        RunFolder::create(dir.path(), "train", "a");
        CHECK_ERROR("exists already", RunFolder::create(dir.path(), "train", "a"));
        for (const char* name : {"../a", "a/b", ".", ".."})
            CHECK_ERROR("expected a plain name", RunFolder::create(dir.path(), "train", name));
        const std::string first = RunFolder::create(dir.path(), "train", "").path();
        const std::string second = RunFolder::create(dir.path(), "train", "").path();
        CHECK(first != second);
        CHECK(fs::path(first).filename().string().starts_with("train-20"));
        CHECK(fs::path(first).filename().string().size() == std::string("train-YYYYMMDD-HHMMSS").size());
        std::ofstream(dir / "file") << "x";
        CHECK_ERROR("cannot create", RunFolder::create(dir / "file", "train", "a"));
        CHECK_ERROR("no such folder", RunFolder::open(dir.path(), "train", "none"));
    }

    TEST_CASE("run folder: the error of a second run names the process of the first") {
        TempDir dir;
        RunFolder first = RunFolder::create(dir.path(), "train", "a");
        ::setenv("RG_JOB", "job \"7\"", 1);
        first.lock();
        ::unsetenv("RG_JOB");
        const Json owner = Json::parse(read_file(first.owner_path()), "owner");
        CHECK(owner.at("job").as_string() == "job \"7\"");
        const std::string expected =
            cat(", of process ", ::getpid(), " on ", owner.at("host").as_string(), " since 20");
        CHECK_ERROR("a exists already" + expected, RunFolder::create(dir.path(), "train", "a"));
        RunFolder second = RunFolder::open(dir.path(), "train", "a");
        CHECK_ERROR("/a" + expected, second.lock());
        for (const char* text : {"", "{\"process\": 1}", "[]"}) { // an owner that cannot be read is not named
            std::ofstream(first.owner_path()) << text;
            CHECK_ERROR("a exists already; give", RunFolder::create(dir.path(), "train", "a"));
        }
    }

    TEST_CASE("run folder: removes temporary files of killed runs only") {
        TempDir dir;
        const char* const names[] = {"config.json.tmp-1", "metrics.jsonl.tmp-1", "report.html.tmp-1",
                                     "model.safetensors.tmp-1"};
        const auto left = [&] {
            return std::count_if(std::begin(names), std::end(names),
                                 [&](const char* name) { return fs::exists(dir / (std::string("a/") + name)); });
        };
        {
            RunFolder live = RunFolder::create(dir.path(), "train", "a");
            live.lock();
            for (const char* name : names) std::ofstream(dir / (std::string("a/") + name)) << "half";
            RunFolder second = RunFolder::open(dir.path(), "train", "a");
            CHECK_ERROR("another process trains", second.lock());
            CHECK(left() == 4);
        }
        std::ofstream(dir / "a/notes.tmp-1") << "not ours";
        RunFolder again = RunFolder::open(dir.path(), "train", "a");
        CHECK(left() == 4);
        again.lock();
        CHECK(left() == 0);
        CHECK(fs::exists(dir / "a/notes.tmp-1"));
    }

    TEST_CASE("run folder: opens the run with the newest checkpoint if there is no name") {
        TempDir dir;
        CHECK_ERROR("nothing to resume", RunFolder::open(dir / "none", "train", ""));
        add_run(dir.path(), "train", "z-old", 200);
        add_run(dir.path(), "train", "a-new", 100);
        add_run(dir.path(), "other", "b-newest", 10);
        RunFolder::create(dir.path(), "train", "no-checkpoint").write_config(Json().set("program", "train"));
        RunFolder::create(dir.path(), "train", "no-config");
        CHECK(RunFolder::open(dir.path(), "train", "").path() == dir / "a-new");
        CHECK(RunFolder::open(dir.path(), "other", "").path() == dir / "b-newest");
        CHECK(RunFolder::open(dir.path(), "train", "z-old").path() == dir / "z-old");
    }

    TEST_CASE("run folder: a killed and resumed run has the metrics of an uninterrupted run") {
        TempDir dir;
        RunFolder through = RunFolder::create(dir.path(), "train", "through");
        train(through, 1, 12);
        const std::string expected = read_file(through.metrics_path());
        // Resume from a checkpoint of every step, and at the end of an epoch from before and after its line.
        for (int64_t step = 0; step <= 11; ++step)
            for (int64_t epochs : {step / 4, (step - 1) / 4}) {
                INFO("step ", step, ", epochs ", epochs);
                RunFolder run = RunFolder::create(dir.path(), "train", "");
                train(run, 1, 11);
                std::ofstream(run.metrics_path(), std::ios::app) << "{\"step\": 12, \"epo"; // a kill cut the line
                run.cut_metrics(step, epochs);
                if (epochs < step / 4) run.log(train_line(step / 4));
                if (step % 4 == 2) // a resumed run repeats a test after its first step
                    run.log(Json().set("step", step).set("epoch", step / 4 + 1).set("validation_loss", 0.25));
                train(run, step + 1, 12);
                CHECK(read_file(run.metrics_path()) == expected);
            }
        RunFolder fresh = RunFolder::create(dir.path(), "train", "fresh");
        fresh.cut_metrics(3, 0); // without any metrics
        CHECK_FALSE(fs::exists(fresh.metrics_path()));
    }

    TEST_CASE("run folder: a damaged line of metrics does not stop a resumed run") {
        TempDir dir;
        RunFolder run = RunFolder::create(dir.path(), "train", "run");
        const std::string first = "{\"step\": 1, \"epoch\": 1}\n", second = "{\"step\": 2, \"epoch\": 1}\n";
        for (const char* bad :
             {"{\"step\"", "", "5", "{\"step\": \"x\"}", "{\"step\": 2, \"epoch\": [1]}", "{\"epoch\": 0.5}"}) {
            CAPTURE(bad);
            std::ofstream(run.metrics_path()) << first << bad << "\n" << second;
            run.cut_metrics(2, 1);
            CHECK(read_file(run.metrics_path()) == first + second);
            std::ofstream(run.metrics_path()) << first << bad << "\n" << second;
            CHECK(metrics_of(run.metrics_path(), 100).size() >= 2);
        }
    }

    TEST_CASE("run folder: a full disk is an error that names the file, and leaves only whole lines") {
        TempDir dir;
        RunFolder run = RunFolder::create(dir.path(), "train", "a");
        train(run, 1, 3);
        const std::string before = read_file(run.metrics_path());
        const std::string error = error_on_full_disk(before.size() + 10, [&] { run.log(step_line(4, 1)); });
        CHECK(contains(error, "cannot append to " + run.metrics_path()));
        CHECK(read_file(run.metrics_path()) == before);
    }

    TEST_CASE("progress: the line of a step fits the width and drops whole fields") {
        const StepStatus s{.epoch = 2, .epochs = 50, .step = 300, .steps = 9800,
                           .metrics = {"loss 1.235", "acc 51.2 %"}, .samples = 256, .epoch_left = 92};
        CHECK(step_text(s, 2345.6, 0.4, 79) ==
              "epoch 2/50  loss 1.235  acc 51.2 %  step 300/9800  left 0:37/1h03m  2346 img/s");
        CHECK(step_text(s, 0, 0, 200) == "epoch 2/50  loss 1.235  acc 51.2 %  step 300/9800");
        CHECK(step_text(s, 2345.6, 0.4, 40) == "epoch 2/50  loss 1.235  acc 51.2 %");
        CHECK(step_text(s, 2345.6, 0.4, 5).empty());
        for (int columns = 0; columns < 100; ++columns) CHECK(int(step_text(s, 1e4, 100, columns).size()) <= columns);
        CHECK(duration_text(59.2) == "1:00");
    }

    TEST_CASE("progress: fold a text at semicolons and between words") {
        CHECK(folded("cpu, fp32; 10 classes of images; 7 parameters", 80) ==
              "cpu, fp32\n10 classes of images\n7 parameters");
        CHECK(folded("one two three; four", 10) == "one two\n    three\nfour");
        CHECK(folded("a-word-that-is-too-long b", 10) == "a-word-that-is-too-long\n    b");
        CHECK(folded("", 10).empty());
        CHECK(wrapped("a  b; c", 80) == "a  b; c");
    }

    TEST_CASE("progress: prints a line to a pipe after two seconds and then every ten, and the last step") {
        double now = 0;
        std::ostringstream pipe;
        Progress progress(pipe, {.columns = 80}, [&] { return now; });
        StepStatus step = first_step(40);
        const auto steps = [&](int count, double seconds) { // returns the lines
            pipe.str("");
            for (int i = 0; i < count; ++i) now += seconds, ++step.step, --step.epoch_left, progress.step(step);
            return pipe.str();
        };
        CHECK(steps(7, 0.25) == "");
        CHECK(steps(1, 0.25) == "epoch 1/2  loss 1.000  acc 50.0 %  step 8/80  left 0:08/0:18  1024 img/s\n");
        CHECK(steps(9, 1) == "");
        CHECK(contains(steps(1, 1), "  step 18/80  "));
        progress.epoch({.epoch = 1, .epochs = 2});
        CHECK(steps(9, 1) == ""); // the line of the epoch was the last
        progress.end();
        CHECK(contains(pipe.str(), "  step 27/80  "));
        pipe.str("");
        progress.end(); // it is printed already
        CHECK(pipe.str() == "");
        steps(1, 0.1);
        progress.epoch({.epoch = 2, .epochs = 2});
        pipe.str("");
        progress.end();
        CHECK(pipe.str() == "");
    }

    TEST_CASE("progress: has colour only where the style says so") {
        std::ostringstream out;
        Progress(out, {.colour = true, .columns = 80}, [] { return 0.0; }).note("done", Colour::green);
        Progress(out, {.columns = 80}, [] { return 0.0; }).note("done", Colour::green);
        CHECK(out.str() == "\x1b[32mdone\x1b[0m\ndone\n");
    }

    TEST_CASE("progress: redraws and clears the line on a terminal") {
        const EpochStatus epoch{.epoch = 1, .epochs = 2, .train = {"train", {"loss 0.5000", "acc 75.00 %"}},
                                .test = {"test", {"loss nan", "acc 62.50 %"}}, .samples_per_second = 2560,
                                .seconds = 1.5};
        const std::string text = "epoch 1/2  train loss 0.5000 acc 75.00 %  test loss nan acc 62.50 %  1.5 s\n";
        EpochStatus with_extra = epoch;
        with_extra.train.metrics.push_back("rmse 3.500 cm"), with_extra.test.metrics.push_back("rmse 4.500 cm");
        CHECK(epoch_text(with_extra, 80) + "\n" == text + "  train rmse 3.500 cm  test rmse 4.500 cm\n");
        CHECK(contains(epoch_text(epoch, 100), "1.5 s  2560 img/s"));
        StepStatus step = first_step(1);
        double now = 0;
        std::ostringstream terminal;
        {
            Progress live(terminal, {.live = true, .columns = 80}, [&] { return now; });
            for (step.step = 1; step.step <= 40; ++step.step) {
                now += 0.0625; // at most ten redraws a second, so every second step redraws
                live.step(step);
            }
            // A constant 16 steps/s of 256 images gives 4096 img/s. At step 39, 41 steps are left.
            CHECK(contains(terminal.str(),
                           "\repoch 1/2  loss 1.000  acc 50.0 %  step 39/80  left 0:01/0:03  4096 img/s\x1b[K"));
            CHECK_FALSE(contains(terminal.str(), "step 40/80"));
            size_t drawn = 0;
            for (char c : terminal.str()) drawn += c == '\r';
            CHECK(drawn == 20);
            now += 100; // a long validation, which does not change the rate
            live.epoch(epoch);
            now += 0.0625;
            live.step(step);
            CHECK(contains(terminal.str().substr(terminal.str().rfind('\r')), "4096 img/s"));
            live.note("saved");
            live.step(step);
        }
        CHECK(contains(terminal.str(), "\r\x1b[K" + text));
        CHECK(contains(terminal.str(), "\r\x1b[Ksaved\n"));
    }

    TEST_CASE("run folder: does not write to a deleted, renamed or emptied folder") {
        const TempDir dir;
        const fs::path place = dir / "runs/x";
        const auto made_anew = [&] { // replaces it like another run of this name
            fs::rename(place, dir / "old");
            fs::create_directory(place);
            std::ofstream(place / "metrics.jsonl").put('\n');
        };
        const std::function<void()> losses[] = {[&] { fs::rename(place, dir / "y"); }, [&] { fs::remove_all(place); },
                                                [&] { fs::remove(place / "metrics.jsonl"); }, made_anew};
        for (const std::function<void()>& lose : losses) {
            fs::remove_all(place);
            RunFolder run = RunFolder::create(dir / "runs", "train", "x");
            run.lock();
            run.log(Json::object().set("step", 1));
            lose();
            const auto size = [&] {
                return fs::exists(place / "metrics.jsonl") ? fs::file_size(place / "metrics.jsonl") : 0;
            };
            const bool there = fs::exists(place);
            const uintmax_t before = size();
            CHECK_ERROR("deleted, renamed or emptied", run.log(Json::object().set("step", 2)));
            CHECK(fs::exists(place) == there);
            CHECK(size() == before);
        }

        // A sweep has a run folder without metrics.
        RunFolder sweep = RunFolder::create(dir / "runs", "sweep", "s");
        sweep.lock();
        sweep.check_in_place();
        fs::rename(dir / "runs", dir / "kept");
        CHECK_ERROR("deleted, renamed or emptied", sweep.check_in_place());
        CHECK_ERROR("cannot create", RunFolder::create(dir / "runs", "train", "x", false));
        CHECK(!fs::exists(dir / "runs"));
        fs::create_directories(dir / "runs/s");
        CHECK_ERROR("deleted, renamed or emptied", sweep.check_in_place());
    }

    TEST_CASE("signals: the first is a stop request, as are its copies; a later one ends the process") {
        for (int signal : {SIGINT, SIGTERM, SIGPIPE}) {
            CAPTURE(signal);
            const pid_t child = ::fork();
            REQUIRE(child >= 0);
            if (child == 0) { // no doctest in the child: the exit status is the result
                install_stop_signals();
                if (stop_requested()) ::_exit(1);
                std::raise(signal);
                if (!stop_requested()) ::_exit(2);
                install_stop_signals(1e9); // no signal is late
                std::raise(signal), std::raise(signal);
                install_stop_signals(0); // each one is late
                std::raise(signal), std::raise(signal);
                ::_exit(3);
            }
            int status = 0;
            REQUIRE(::waitpid(child, &status, 0) == child);
            if (signal == SIGPIPE)
                CHECK(WEXITSTATUS(status) == 3); // every line into a closed pipe sends one
            else
                CHECK((WIFSIGNALED(status) && WTERMSIG(status) == signal));
        }
    }
}

} // namespace rg
