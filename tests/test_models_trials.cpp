// Tables of trials: grids, CSV files in, results out.

#include "core/atomic_file.h"
#include "models/trial_table.h"
#include "temp_dir.h"

#include <doctest/doctest.h>

using namespace rg;

TEST_SUITE("models") {
    TEST_CASE("trials: a grid has all combinations, the first option changing slowest") {
        CHECK(trial_grid({}) == std::vector<Settings>{{}});
        const std::vector<Settings> grid = trial_grid({"depth=1:2:5", "lr=0.01,x"});
        REQUIRE(grid.size() == 6);
        CHECK(grid[1] == Settings{{"depth", "1"}, {"lr", "x"}});
        CHECK(grid[4] == Settings{{"depth", "5"}, {"lr", "0.01"}});
        CHECK(text_of(grid[4]) == "depth 5, lr 0.01");
        for (const char* bad :
             {"depth", "=1", "depth=", "depth=1:", "depth=3:1", "depth=1:0:3", "depth=1:2:3:4", "d=0.1:2"})
            CHECK(contains(error_of([&] { trial_grid({bad}); }), bad));
        CHECK(error_of([&] { trial_grid({"a=1", "a=2"}); }) == "trials: a is swept twice");
    }

    TEST_CASE("trials: a CSV file, with quotes, empty fields and both kinds of line ends") {
        const TempDir folder;
        const std::string path = folder / "t.csv";
        write_file_atomic(path, "lr,augment,nesterov\r\n0.1,\"flip,translate\",true\r\n\n,\"a \"\"b\"\"\",false");
        const std::vector<Settings> trials = read_trials(path);
        REQUIRE(trials.size() == 2);
        CHECK(trials[0] == Settings{{"lr", "0.1"}, {"augment", "flip,translate"}, {"nesterov", "true"}});
        CHECK(trials[1] == Settings{{"augment", "a \"b\""}, {"nesterov", "false"}});
        CHECK(arguments_of(trials[1]) == std::vector<std::string>{"--augment=a \"b\"", "--no-nesterov"});
        for (const char* bad : {"", "lr\n", "lr,depth\n1\n", "lr\n\"1\n"}) {
            write_file_atomic(path, bad);
            CHECK(contains(error_of([&] { read_trials(path); }), path));
        }
    }

    TEST_CASE("trials: results have a column for every setting and metric of any trial") {
        const TempDir folder;
        std::vector<TrialRow> rows(2);
        rows[0] = {1, {{"lr", "0.1"}}, "failed", "no, \"never\"\nagain", "trials/1", {}, {}, {0}, 1.5};
        rows[1] = {2, {{"depth", "2"}}, "finished", "", "trials/2", {}, {}, {1}, 2};
        rows[1].last = Json::object().set("epoch", 3).set("test_accuracy", 0.5).set("seconds", 0.25);
        CHECK(rows[0].accuracy() < 0);
        CHECK(rows[1].accuracy() == 0.5);
        write_results(folder.path(), rows);
        CHECK(read_file(folder / "results.csv") ==
              "trial,lr,depth,state,epoch,test_accuracy,epoch_seconds,seconds,note,folder\n"
              "1,0.1,,failed,,,,1.5,\"no, \"\"never\"\" again\",trials/1\n"
              "2,,2,finished,3,0.5,0.25,2,,trials/2\n");
        const std::string lines = read_file(folder / "results.jsonl");
        CHECK(Json::parse(lines.substr(0, lines.find('\n')), "first").at("note").as_string() == rows[0].note);
    }
}
