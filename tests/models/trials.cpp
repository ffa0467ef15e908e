// Tests tables of trials: grids, CSV files, results and the page.

#include "core/atomic_file.h"
#include "core/text.h"
#include "models/programs.h"
#include "models/sweep/stop_rules.h"
#include "models/sweep/trial_table.h"
#include "models/sweep/trials_board.h"
#include "models/sweep/trials_options.h"
#include "models/sweep/trials_report.h"
#include "tests/temp_dir.h"

#include <cmath>
#include <doctest/doctest.h>
#include <set>
#include <sstream>

using namespace rg;

namespace {

const Ranking kAccuracy{"validation_accuracy", "validation acc", "%", true};

/// Returns the rows of trials with the numbers 1, 2, ...
std::vector<TrialRow> trial_rows(size_t count) {
    std::vector<TrialRow> rows(count);
    for (size_t i = 0; i < count; ++i) rows[i].number = int64_t(i) + 1, rows[i].folder = cat("trials/", i + 1);
    return rows;
}

/// Returns the metrics of an epoch.
Json epoch_line(int64_t epoch, const char* name, double value) {
    return Json::object().set("epoch", epoch).set(name, value);
}

} // namespace

TEST_SUITE("models") {
    TEST_CASE("trials: without --grid and --table, the error has an example") {
        Trials trials;
        trials.program = &train_digits;
        CHECK_ERROR(cat("train_digits sweep: expected --table or --grid, got neither; give at least one, such as ",
                        shell_word(invocation_name()), " sweep --epochs 3 --grid lr=0.01,0.1"),
                    make_table(trials));
    }

    TEST_CASE("trials: a grid has all combinations, the first option changing slowest") {
        CHECK(trial_grid({}) == std::vector<TrialSettings>{{}});
        const std::vector<TrialSettings> grid = trial_grid({"depth=1:2:5", "lr=0.01,x"});
        REQUIRE(grid.size() == 6);
        CHECK(grid[1] == TrialSettings{{"depth", "1"}, {"lr", "x"}});
        CHECK(grid[4] == TrialSettings{{"depth", "5"}, {"lr", "0.01"}});
        CHECK(settings_text(grid[4]) == "depth 5, lr 0.01");
        const auto values = [](const std::string& text) {
            std::vector<std::string> all;
            for (const TrialSettings& trial : trial_grid({"x=" + text})) all.push_back(trial.at(0).second);
            return all;
        };
        using List = std::vector<std::string>;
        CHECK(values("-1:1") == List{"-1", "0", "1"});
        CHECK(values("pipe:ssh host \"cat a\",s3://bucket/b") == List{"pipe:ssh host \"cat a\"", "s3://bucket/b"});
        CHECK(values("\"flip,translate\",none") == List{"flip,translate", "none"});
        CHECK(values("1:2,3") == List{"1:2", "3"}); // invalid numbers are for the option to reject
        CHECK(values("0.1:2") == List{"0.1:2"});
        for (const char* bad : {"depth", "=1", "depth=", "depth=3:1", "depth=1:0:3", "depth=1:2:3:4", "x=\"1,2"})
            CHECK_ERROR(bad, trial_grid({bad}));
        CHECK(error_of([&] { trial_grid({"a=1", "a=2"}); }) == "trials: expected a once, got it twice");
    }

    TEST_CASE("trials: random ones repeat, lie in their ranges, and differ") {
        const std::vector<std::string> space{"lr=log:1e-3:1", "l2=linear:-1:2", "width=choice:16,32", "depth=1:3"};
        const std::vector<TrialSettings> trials = random_trials(space, 300, 7);
        REQUIRE(trials.size() == 300);
        CHECK(random_trials(space, 300, 7) == trials);
        CHECK(random_trials(space, 300, 8) != trials);
        const std::vector<TrialSettings> first(trials.begin(), trials.begin() + 20);
        CHECK(random_trials(space, 20, 7) == first); // more trials are appended
        CHECK(std::set(trials.begin(), trials.end()).size() == 300);
        // A third of the range gets 100 of 300 uniform numbers on average, with a standard deviation of 8.2. The test
        // allows 5 standard deviations.
        int low_rates = 0, low_l2 = 0, wide = 0, deep = 0;
        for (const TrialSettings& trial : trials) {
            double lr = 0, l2 = 0;
            REQUIRE((read_number(trial[0].second, lr) && read_number(trial[1].second, l2)));
            CHECK(lr >= 1e-3);
            CHECK(lr <= 1);
            CHECK(l2 >= -1);
            CHECK(l2 <= 2);
            low_rates += lr < 1e-2, low_l2 += l2 < 0, wide += trial[2].second == "32", deep += trial[3].second == "3";
        }
        for (const int count : {low_rates, low_l2, deep}) CHECK(std::abs(count - 100) < 41);
        CHECK(std::abs(wide - 150) < 43);
        CHECK(random_trials({"lr=linear:1.00001:1.00002"}, 1, 1)[0][0].second == "1.00001"); // and not 1, when rounded
        // All combinations, but no more
        const std::vector<TrialSettings> all = random_trials({"a=1,2", "b=1:3"}, 6, 1);
        CHECK(std::set(all.begin(), all.end()).size() == 6);
        CHECK_ERROR("got 7 (6 found)", random_trials({"a=1,2", "b=1:3"}, 7, 1));
        CHECK_ERROR("got 1 (0 found)", random_trials({}, 1, 1));
        for (const char* bad : {"a=log:0:1", "a=log:1:1", "a=linear:2:1", "a=linear:1", "a=log:1:2:3", "a=log:x:1",
                                "a=linear:-1e308:1e308"})
            CHECK_ERROR(bad, random_trials({bad}, 1, 1));
        for (const char* unknown : {"lr=uniform:0:1", "lr=loguniform:1e-3:1"})
            CHECK_ERROR("expected linear:FROM:TO, log:FROM:TO,", random_trials({unknown}, 1, 1));
        CHECK(trial_grid({"data=choice:host:1:2"})[0][0].second == "host:1:2");
        CHECK_ERROR("expected values of lr, got a range", trial_grid({"lr=log:1e-3:1"}));
        CHECK(trial_grid({"width=choice:16,32"}) == trial_grid({"width=16,32"}));
        CHECK(trial_grid({"scale=choice:1:2"})[0][0].second == "1:2");
        CHECK(trial_grid({"schedule=log"}).size() == 1);
    }

    TEST_CASE("trials: stop rules compare a trial with the others after the same epoch") {
        StopRules rules;
        rules.set_below("12.5");
        CHECK(rules.below == 12.5);
        CHECK(TrialComparison(rules, kAccuracy).add(1, Json::object().set("epoch", 1)).empty());
        for (const char* bad : {"", "half", "-1", "5%", "nan"})
            CHECK_ERROR("at least 0, median or halving", rules.set_below(bad));

        const auto line = [](int64_t epoch, double value) { return epoch_line(epoch, "validation_accuracy", value); };
        rules.set_below("median");
        CHECK(rules.below == 0);
        rules.after = 2;
        TrialComparison median(rules, kAccuracy);
        for (int64_t trial = 1; trial <= 3; ++trial)
            for (int64_t epoch = 1; epoch <= 2; ++epoch)
                CHECK(median.add(trial, line(epoch, 0.1 * double(trial))).empty());
        CHECK(median.add(4, line(1, 0)).empty()); // too early
        CHECK(median.add(4, line(2, 0.19)) == "worse than the median of 3 others after epoch 2");
        CHECK(median.add(5, line(2, 0.195)).empty()); // the median of four is between 0.19 and 0.2
        CHECK(median.add(4, line(3, 0)).empty());     // no other has come as far
        CHECK(median.add(6, Json::object().set("epoch", 2)).empty());

        rules.set_below("halving");
        TrialComparison halves(rules, {"loss"});
        const auto loss = [&](int64_t trial, int64_t epoch, double value) {
            return halves.add(trial, epoch_line(epoch, "loss", value));
        };
        for (const int64_t epoch : {1, 2, 3, 4, 5, 6, 7, 8, 9}) {
            const bool checks = epoch == 2 || epoch == 4 || epoch == 8;
            const auto reason = [&](int trials) {
                return checks ? cat("not in the better half of ", trials, " trials after epoch ", epoch) : "";
            };
            CHECK(loss(1, epoch, 3).empty());
            CHECK(loss(2, epoch, 4).empty()); // the last, but of too few
            CHECK(loss(3, epoch, 3).empty());
            CHECK(loss(4, epoch, 3.5) == reason(4));           // two are better
            CHECK(loss(5, epoch, 3.2).empty());                // the third of five is in the better half
            CHECK(loss(6, epoch, epoch == 1 ? 2 : 9).empty()); // its best was the first
            CHECK(loss(7, epoch, 3.25) == reason(7));          // four are better
        }
    }

    TEST_CASE("trials: are ranked by the main metric, or by any that an epoch has") {
        const std::vector<MetricInfo> metrics{{"rmse", "rmse", "cm"}, {"accuracy", "acc", "%", true}};
        CHECK(ranking_by("", metrics) == MetricInfo{"validation_rmse", "validation rmse", "cm"});
        CHECK(ranking_by("train_accuracy", metrics) == MetricInfo{"train_accuracy", "train acc", "%", true});
        CHECK(ranking_by("", {}).name == "validation_loss");
        CHECK_ERROR("--rank-by: expected one of validation_rmse, validation_accuracy, validation_loss, train_rmse, ",
                    ranking_by("test_accuracy", metrics));
        CHECK_ERROR("--until: expected one of validation_rmse, ", ranking_by("accuracy", metrics, "--until"));
    }

    TEST_CASE("trials: stop at fixed values of the metric that ranks, in percent if it is a fraction") {
        const StopRules percent{.below = 20, .target = 90, .after = 2};
        const auto accuracy = [&](int64_t epoch, double value) {
            return percent.stop_reason(epoch_line(epoch, "validation_accuracy", value), kAccuracy);
        };
        CHECK(accuracy(1, 0.1) == ""); // too early
        CHECK(accuracy(2, 0.1) == "below 20 %");
        CHECK(accuracy(2, 0.2) == "");
        CHECK(accuracy(1, 0.9) == "reached 90 %");
        CHECK(percent.stop_reason(epoch_line(2, "validation_loss", 0), kAccuracy) == "");
        const StopRules error{.below = 5, .target = 1};
        const Ranking rmse{"validation_rmse", "validation rmse", "cm"};
        for (const auto& [value, reason] : {std::pair(5.5, "above 5 cm"), {3, ""}, {1, "reached 1 cm"}, {NAN, ""}})
            CHECK(error.stop_reason(epoch_line(1, "validation_rmse", value), rmse) == reason);
        // Any metric may end the sweep.
        const StopRules until{.until_metric = kAccuracy, .until = 90};
        for (const auto& [value, reason] :
             {std::pair(0.9, "reached validation_accuracy 90 %"), {0.89, ""}, {NAN, ""}}) {
            CHECK(until.sweep_end_reason(epoch_line(1, "validation_accuracy", value)) == reason);
            CHECK(until.stop_reason(epoch_line(1, "validation_accuracy", value), rmse) == reason);
        }
        CHECK(until.sweep_end_reason(Json()) == "");
        CHECK(StopRules{.until_metric = rmse}.sweep_end_reason(epoch_line(1, "validation_rmse", 0)) ==
              "reached validation_rmse 0 cm");
        CHECK(StopRules().sweep_end_reason(epoch_line(1, "validation_rmse", 0)) == "");
    }

    TEST_CASE("trials: reads CSV with quotes, empty fields and both line ends") {
        const TempDir folder;
        const std::string path = folder / "t.csv";
        write_file_atomic(path, "lr,augment,nesterov\r\n0.1,\"flip,translate\",true\r\n\n,\"a \"\"b\"\"\",false");
        const std::vector<TrialSettings> trials = parse_trials(read_file(path), path);
        REQUIRE(trials.size() == 2);
        CHECK(trials[0] == TrialSettings{{"lr", "0.1"}, {"augment", "flip,translate"}, {"nesterov", "true"}});
        CHECK(trials[1] == TrialSettings{{"augment", "a \"b\""}, {"nesterov", "false"}});
        CHECK(arguments_of(trials[1]) == std::vector<std::string>{"--augment=a \"b\"", "--no-nesterov"});
        for (const char* bad : {"", "lr\n", "lr,depth\n1\n", "lr\n\"1\n", "lr,depth,lr\n1,2,3\n"}) {
            write_file_atomic(path, bad);
            CHECK_ERROR(path, parse_trials(read_file(path), path));
        }
        CHECK(parse_trials("\xef\xbb\xbf\"lr\",depth\n1,2\n", "t") == parse_trials("lr,depth\n1,2\n", "t"));
    }

    TEST_CASE("trials: a table of options is data and runs nothing") {
        const auto error = [](const std::string& table) { return error_of([&] { parse_trials(table, "t"); }); };
        CHECK(contains(error("lr,data\n1,s3://b/x\n1,pipe:id"), "got pipe: (t, line 3); give --data"));
        CHECK(contains(error("lr,test-data\n1,pipe:id"), "got pipe: (t, line 2); give --test-data pipe:COMMAND"));
        CHECK(parse_trials("data,init\npipe,pipe:x", "t").size() == 1); // a folder, and a file
        CHECK(contains(error("data=pipe:id;,lr\nx,1\n"), "got \"data=pipe:id;\" (t, line 1)"));
        CHECK(contains(error("data=pipe:id,lr\ntrue,1\n"), "of letters, digits, - and _"));
        for (const char* name : {"l r", "", "\"l\nr\"", "\xff", "lr\x1b"})
            CHECK_FALSE(error(cat("depth,", name, "\n1,2\n")).empty());
        CHECK(trial_grid({"data=pipe:cat x.tar"}).size() == 1); // on the command line a command is allowed
    }

    TEST_CASE("trials: limits the number of trials and the length of names") {
        const std::string largest = std::to_string(INT64_MAX), smallest = std::to_string(INT64_MIN);
        const std::vector<TrialSettings> last = trial_grid({"a=9223372036854775805:2:" + largest});
        REQUIRE(last.size() == 2);
        CHECK(last[1] == TrialSettings{{"a", largest}});
        CHECK(trial_grid({"a=" + smallest + ":9000000000000000000:" + largest}).size() == 3);
        CHECK(trial_grid({"a=1:100000"}).size() == kMaxTrials);
        for (const std::string& many : {std::string("a=0:100000"), "a=1:" + largest, "a=" + smallest + ":" + largest})
            CHECK_ERROR("at most 100000 trials, got more (" + many, trial_grid({many}));
        CHECK_ERROR("at most 100000 trials, got more (b=1:317", trial_grid({"a=1:317", "b=1:317"}));

        // A long name in the first line would need memory in every trial.
        const std::string name(kMaxOptionName, 'n');
        CHECK(parse_trials(name + "\n1\n2", "t")[1] == TrialSettings{{name, "2"}});
        CHECK(error_of([&] { parse_trials("a,n" + name + "\n1,2\n", "t"); }) ==
              "trials: expected option names of at most 100 bytes, got 101 (t, line 1)");
        CHECK_ERROR("got 101", trial_grid({"n" + name + "=1"}));
        std::string table = "a\n";
        for (size_t i = 0; i < kMaxTrials; ++i) table += "1\n";
        CHECK(parse_trials(table, "t").size() == kMaxTrials);
        CHECK_ERROR("at most 100000 trials, got more (t, line 100002)", parse_trials(table + "1\n", "t"));
    }

    TEST_CASE("trials: results have a column for each setting and metric of any trial") {
        const TempDir folder;
        std::vector<TrialRow> rows(2);
        rows[0] = {1, {{"lr", "0.1"}}, "failed", "no, \"never\"\nagain", "trials/1", {}, {}, {0}, 1.5};
        rows[1] = {2, {{"depth", "2"}}, "finished", "", "trials/2", {}, {}, {1}, 2};
        rows[1].last = Json::object().set("epoch", 3).set("test_accuracy", 0.5).set("seconds", 0.25);
        CHECK(best_first(rows, kAccuracy).empty()); // a test accuracy does not rank trials
        write_results(folder.path(), rows);
        CHECK(read_file(folder / "results.csv") ==
              "trial,lr,depth,state,epoch,test_accuracy,epoch_seconds,seconds,note,folder\n"
              "1,0.1,,failed,,,,1.5,\"no, \"\"never\"\"\\nagain\",trials/1\n"
              "2,,2,finished,3,0.5,0.25,2,,trials/2\n");
        const std::string lines = read_file(folder / "results.jsonl");
        CHECK(Json::parse(lines.substr(0, lines.find('\n')), "first").at("note").as_string() == rows[0].note);
    }

    TEST_CASE("trials: a pipe gets a line when a trial ends, and one of a running trial every ten seconds") {
        std::vector<TrialRow> rows = trial_rows(2);
        for (size_t i = 0; i < 2; ++i) rows[i].settings = {{"lr", cat(0.25 * double(i + 1))}, {"depth", "2"}};
        double now = 100;
        std::ostringstream pipe;
        TrialsBoard board(rows, kAccuracy, pipe, {}, {}, [&] { return now; });
        const auto step = [&](size_t i, double seconds) {
            pipe.str("");
            now += seconds;
            rows[i].live = Json::object().set("step", 7).set("epoch", 1).set("accuracy", 0.25);
            board.update(rows[i], false);
            return pipe.str();
        };
        rows[0].state = "running", rows[0].ranks = {1};
        now += 100; // it has waited in the queue
        board.update(rows[0], true);
        CHECK(step(0, 9.9) == "");
        CHECK(step(0, 0.2) == "trial 1  lr 0.25  running on rank 1  epoch 1  step 7  train acc 25.00 %\n");
        CHECK(step(0, 9.9) == "");
        pipe.str("");
        rows[0].last = Json::object().set("epoch", 1).set("validation_accuracy", 0.5);
        board.update(rows[0], true); // the end of an epoch
        CHECK(pipe.str() == "");
        rows[0].state = "finished";
        board.update(rows[0], true);
        CHECK(pipe.str() == "trial 1  lr 0.25  finished  validation acc 50.00 %"
                            "  best: validation acc 50.00 % of trial 1\n");
        rows[1].state = "stopped", rows[1].note = "below 40 %";
        rows[1].last = Json::object().set("validation_accuracy", 0.25);
        pipe.str("");
        board.update(rows[1], true);
        CHECK(pipe.str() == "trial 2  lr 0.5  stopped  validation acc 25.00 %  (below 40 %)"
                            "  best: validation acc 50.00 % of trial 1\n");
    }

    TEST_CASE("trials: the settings that differ are those that some trials lack or set to other values") {
        std::vector<TrialRow> rows(3);
        for (TrialRow& row : rows) row.settings = {{"depth", "2"}, {"lr", "0.1"}, {"seed", "1"}};
        CHECK(differing_settings(rows).empty());
        rows[1].settings[1].second = "0.2";
        rows[2].settings.pop_back();
        CHECK(differing_settings(rows) == std::set<std::string>{"lr", "seed"});
        CHECK(trial_line(rows[0], kAccuracy, {}) == "trial 0  queued");
        CHECK(trial_line(rows[0], kAccuracy, {"lr", "seed"}) == "trial 0  lr 0.1, seed 1  queued");
    }

    TEST_CASE("trials: redraw their lines on a terminal without wrapping") {
        std::vector<TrialRow> rows = trial_rows(2);
        rows[1].note = "two\nlines";
        double now = 100;
        std::ostringstream terminal;
        const auto draw = [&](TrialsBoard& board, double seconds) {
            terminal.str("");
            now += seconds;
            board.update(rows[0], false);
            return terminal.str();
        };
        TrialsBoard board(rows, kAccuracy, terminal, {.live = true}, {23, 3}, [&] { return now; });
        CHECK(draw(board, 0) == "\rtrial 1  queued\x1b[K\n\rtrial 2  queued  (two\\\x1b[K\n\x1b[J");
        CHECK(draw(board, 0.05) == "");
        rows[1].note = "caf\u00e9 au lait"; // a cut after so many bytes would split a character
        CHECK(draw(board, 0.1) == "\x1b[2A\rtrial 1  queued\x1b[K\n\rtrial 2  queued  (caf\x1b[K\n\x1b[J");

        rows = trial_rows(6);
        for (size_t i = 0; i < 6; ++i) rows[i].state = i < 2 ? "failed" : "running";
        rows[5].state = "queued";
        TrialsBoard full(rows, kAccuracy, terminal, {.live = true}, {60, 4}, [&] { return now; });
        CHECK(draw(full, 1) == "\rtrial 3  running\x1b[K\n\rtrial 4  running\x1b[K\n"
                               "\r6 trials: 3 running, 1 queued, 2 ended\x1b[K\n\x1b[J");
        rows[2].state = rows[3].state = "finished";
        CHECK(draw(full, 1) == "\x1b[3A\rtrial 5  running\x1b[K\n"
                               "\r6 trials: 1 running, 1 queued, 4 ended\x1b[K\n\x1b[J");
    }

    TEST_CASE("trials: the best has the best metric and has not failed") {
        std::vector<TrialRow> rows(4);
        CHECK(best_first(rows, kAccuracy).empty());
        for (size_t i = 0; i < 4; ++i) rows[i].last = Json::object().set("validation_accuracy", i == 1 ? 0.25 : 0.5);
        rows[0].state = "failed";
        using Order = std::vector<const TrialRow*>;
        CHECK(best_first(rows, kAccuracy) == Order{&rows[2], &rows[3], &rows[1]});
        CHECK(best_first(rows, {.name = kAccuracy.name}) == Order{&rows[1], &rows[2], &rows[3]});
        for (TrialRow& row : rows) row.last.set("loss", double(row.last.at("validation_accuracy").as_double() == 0.25));
        CHECK(best_first(rows, {.name = "loss", .higher_is_better = true}).front() == &rows[1]);
        CHECK(best_first(rows, {.name = "angle_rmse"}).empty());
        rows[1].last.set("validation_accuracy", NAN); // as rank 0 gets it from its own trial
        CHECK(best_first(rows, kAccuracy) == Order{&rows[2], &rows[3]});
    }

    TEST_CASE("trials: the page shows the metrics, state and reason of each trial, but no images") {
        const TempDir folder;
        std::vector<TrialRow> rows = trial_rows(2);
        const auto options = [](const TrialRow& row) { return Json::object().set("lr", row.number); };
        double now = 0;
        TrialsReport all(folder.path(), rows, kAccuracy, options, [&] { return now; });

        const data::ImageSet set{2, 1, 1, 1, std::vector<uint8_t>{1, 2}, {0, 1}, {"a", "b"}};
        RunFolder run = RunFolder::create(folder / "trials", "train", "1");
        Report own(run, Json::object().set("options", Json::object().set("lr", 1.5)));
        own.set("tested", "validation");
        own.set("confusion", report_confusion(set, std::vector<double>{1, 1, 1, 0}));
        own.set("samples", Json::array());
        own.write("running");
        const Json step =
            Json::object().set("step", 1).set("epoch", 1).set("loss", 2.5).set("accuracy", 0.5).set("lr", 0.1);
        run.log(step); // after the page of the trial was written
        rows[0].state = "failed", rows[0].note = "no memory";
        all.update(rows[0]);
        all.set("summary", "two trials");
        all.write("running");

        const Json page = read_report(folder / "report.html");
        const Json::Array& runs = page.at("runs").as_array();
        REQUIRE(runs.size() == 2);
        const std::pair<std::string, std::string> values[] = {{page.at("sweep").at("state").dump(), "running"},
                                                              {page.at("sweep").at("summary").dump(), "two trials"},
                                                              {runs[0].at("name").dump(), "1"},
                                                              {runs[0].at("state").dump(), "failed"},
                                                              {runs[0].at("note").dump(), "no memory"},
                                                              {runs[0].at("tested").dump(), "validation"},
                                                              {runs[1].at("state").dump(), "queued"}};
        for (const auto& [value, expected] : values) CHECK(value == cat('"', expected, '"'));
        CHECK(page.at("sweep").find("best") == nullptr);
        CHECK(runs[0].at("config").at("options").at("lr").as_double() == 1.5); // the value that the program read
        CHECK(runs[0].at("metrics").as_array() == Json::Array{step});
        CHECK(runs[0].at("confusion").at("counts").dump() == "[[0, 1], [0, 1]]");
        CHECK(runs[0].find("samples") == nullptr); // pictures would make the page large
        CHECK(runs[1].find("note") == nullptr);
        CHECK(runs[1].at("config").at("options").at("lr").as_int() == 2);
        CHECK(runs[1].at("metrics").as_array().empty());

        run.log(Json(step).set("step", 2)); // a trial that runs on
        all.update(rows[0]);
        all.write("running");
        const Json later = read_report(folder / "report.html");
        CHECK(later.at("runs").as_array()[0].at("metrics").as_array().size() == 2);

        rows[1].last = Json::object().set("epoch", 1).set("test_accuracy", 0.5);
        all.write("done");
        CHECK(read_report(folder / "report.html").at("sweep").find("best") == nullptr);
        rows[1].last.set("validation_accuracy", 0.5);
        all.write("done");
        CHECK(read_report(folder / "report.html").at("sweep").at("best").as_string() == "2");
        write_file_atomic(folder / "other.html", "<html>");
        CHECK_ERROR("other.html", read_report(folder / "other.html"));
    }

    TEST_CASE("trials: write their files at most once a second, and for at most a twentieth of the time") {
        const TempDir folder;
        std::vector<TrialRow> rows = trial_rows(8);
        double now = 100, cost = 0; // a write takes `cost`: it reads the clock at its begin and end
        const auto clock = [&] { return now += cost; };
        TrialsReport all(
            folder.path(), rows, kAccuracy, [](const TrialRow&) { return Json::object(); }, clock);
        const auto end_one = [&](size_t i) {
            rows[i].state = "finished";
            all.update(rows[i]);
        };
        // Returns the number of finished trials in both files, which must agree.
        const auto written = [&] {
            const std::string csv = read_file(folder / "results.csv");
            const Json page = read_report(folder / "report.html");
            int64_t in_csv = 0, in_page = 0;
            for (size_t at = 0; (at = csv.find(",finished,", at)) != std::string::npos; ++at) ++in_csv;
            for (const Json& run : page.at("runs").as_array()) in_page += run.at("state").as_string() == "finished";
            CHECK(in_csv == in_page);
            return in_csv;
        };
        end_one(0);
        CHECK(written() == 1); // the first change is written at once
        for (size_t i = 1; i < 6; ++i) end_one(i);
        now = 100.9;
        all.write_if_due();
        CHECK(written() == 1);
        now = 101;
        all.write_if_due();
        CHECK(written() == 6);

        // After a write of half a second, the next one comes ten seconds later.
        now = 102, cost = 0.5;
        end_one(6);
        CHECK(written() == 7);
        cost = 0, now += 9.9;
        end_one(7);
        CHECK(written() == 7);
        now += 0.1;
        all.write_if_due();
        CHECK(written() == 8);
    }
}
