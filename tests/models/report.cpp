// Tests the page of a run: it is valid for any data, and the data can be read back from it.
#include "core/atomic_file.h"
#include "core/clock.h"
#include "core/plan.h"
#include "core/version.h"
#include "models/run/confusion.h"
#include "models/run/report.h"
#include "tests/temp_dir.h"

#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>

namespace rg {
namespace {

/// Returns the text of the data element up to the first end tag, as a browser does.
std::string data_text(const std::string& page) {
    const std::string begin = "<script id=\"data\" type=\"application/json\">";
    const size_t from = page.find(begin);
    REQUIRE(from != std::string::npos);
    return page.substr(from + begin.size(), page.find("</script", from) - from - begin.size());
}

Json data_of(const std::string& page) { return Json::parse(data_text(page), "page"); }

Json step_line(int64_t step, int64_t epoch, double loss) {
    return Json::object().set("step", step).set("epoch", epoch).set("loss", loss).set("accuracy", 0.5).set("lr", 0.1);
}

Json epoch_line(int64_t epoch) { return Json::object().set("epoch", epoch).set("test_loss", 1.0 / double(epoch)); }

} // namespace

TEST_SUITE("models") {
    TEST_CASE("report: fewer points of steps are means of all steps") {
        for (const size_t points : {2, 3, 7, 8}) {
            CAPTURE(points);
            TempDir dir;
            RunFolder folder = RunFolder::create(dir.path(), "train", "run");
            for (int64_t step = 1; step <= 100; ++step)
                folder.log(Json::object().set("step", step).set("epoch", 1).set("loss", double(step)));
            const Json::Array lines = metrics_of(folder.metrics_path(), points);
            CHECK(lines.size() <= points);
            int64_t before = 0;
            for (const Json& line : lines) {
                const int64_t last = line.at("step").as_int();
                CHECK(line.at("loss").as_double() == double(before + 1 + last) / 2); // of steps before + 1 to last
                before = last;
            }
            CHECK(before == 100);
        }
    }

    TEST_CASE("report: escapes any text of the data") {
        const std::string bad = "</script><script>alert(1)</script><!-- \" \\ ' & \n \xe2\x80\xa8 null</script>";
        const Json data = Json::object().set(bad, bad);
        const std::string page = report_page(data.dump()), empty = report_page("{}");
        CHECK(data_of(page) == data);
        CHECK(data_text(page).find_first_of("<\n") == std::string::npos);
        // The rest of the page does not depend on the data.
        const size_t at = page.find(data_text(page));
        CHECK(page.substr(0, at) == empty.substr(0, at));
        CHECK(page.substr(at + data_text(page).size()) == empty.substr(at + data_text(empty).size()));
    }

    TEST_CASE("report: the page loads nothing from a network") {
        const std::string page = report_page("{}");
        CHECK(contains(page, "default-src 'none'"));
        for (const char* outside : {"src=\"", "@import", "url(", "//cdn"}) CHECK_FALSE(contains(page, outside));
    }

    TEST_CASE("report: shows an empty run, and one with non-finite metrics") {
        TempDir dir;
        RunFolder folder = RunFolder::create(dir / "runs", "train", "odd <name>");
        Report report(folder, Json::object().set("seed", 3));
        report.write("running");
        Json run = data_of(read_file(folder.report_path())).at("runs").as_array().at(0);
        CHECK(run.at("name").as_string() == "odd <name>");
        CHECK(run.at("config").at("seed").as_int() == 3);
        CHECK(run.at("state").as_string() == "running");
        CHECK(run.at("metrics").as_array().empty());
        CHECK(run.at("build").as_string() == kBuild);
        CHECK(run.at("begun").as_double() > 1.7e9); // it is after 2023
        CHECK(run.at("written").as_double() >= run.at("begun").as_double());
        // The command line is that of this program. A system without /proc tells none.
        const std::string command = run.at("command").as_string();
        if (std::filesystem::exists("/proc/self/cmdline")) CHECK(contains(command, "rg_tests"));

        folder.log(step_line(1, 1, 2.5));
        folder.log(step_line(2, 1, std::nan("")));
        folder.log(step_line(3, 1, INFINITY));
        folder.log(epoch_line(1));
        report.set("summary", "told");
        report.write("done");
        run = data_of(read_file(folder.report_path())).at("runs").as_array().at(0);
        CHECK(run.at("state").as_string() == "done");
        CHECK(run.at("summary").as_string() == "told");
        const Json::Array& lines = run.at("metrics").as_array();
        REQUIRE(lines.size() == 4);
        CHECK(lines[0].at("loss").as_double() == 2.5);
        CHECK(lines[1].at("loss").is_null());
        CHECK(lines[2].at("loss").is_null());
        CHECK(lines[3] == epoch_line(1));
    }

    TEST_CASE("report: a resumed run shows its earlier metrics, and the time of all its starts") {
        TempDir dir;
        const Json test_line = Json::object().set("step", 3).set("epoch", 2).set("test_loss", 0.5);
        {
            RunFolder folder = RunFolder::create(dir / "runs", "train", "run");
            for (const int64_t step : {1, 2}) folder.log(step_line(step, 1, 1.0 / 3));
            folder.log(epoch_line(1));
            folder.log(step_line(3, 2, std::nan("")));
            folder.log(test_line);
            Report first(folder, Json::object());
            first.set("begun", unix_seconds() - 100), first.set("seconds_before", 20.0);
            first.set("confusion", "of the last test"), first.set("note", "of this start");
            first.write("stopped");
        }
        RunFolder folder = RunFolder::open(dir / "runs", "train", "run");
        Report report(folder, Json::object());
        folder.log(step_line(4, 2, 0.25));
        report.write("running");
        const Json run = read_report(folder.report_path()).at("runs").as_array().at(0);
        const Json::Array& lines = run.at("metrics").as_array();
        REQUIRE(lines.size() == 6);
        const double before = run.at("seconds_before").as_double();
        CHECK((before >= 120 && before < 1e6));
        CHECK(run.at("confusion").as_string() == "of the last test");
        CHECK(!run.find("note"));
        CHECK(lines[0].at("loss").as_double() == 0.333333); // rounded
        CHECK(lines[2] == epoch_line(1));
        CHECK(lines[3].at("loss").is_null());
        CHECK(lines[4] == test_line);
        CHECK(lines[5] == step_line(4, 2, 0.25));
    }

    TEST_CASE("report: limits the points of a long run, and keeps its means") {
        TempDir dir;
        const RunFolder folder = RunFolder::create(dir / "runs", "train", "long");
        Report report(folder, Json::object());
        const int64_t steps = 9 * int64_t(Report::kSteps) + 3;
        std::string lines;
        for (int64_t step = 1; step <= steps; ++step) {
            lines += step_line(step, (step - 1) / 1000 + 1, double(step)).dump() + "\n";
            if (step % 1000 == 0) lines += epoch_line(step / 1000).dump() + "\n";
        }
        write_file_atomic(folder.metrics_path(), lines);
        report.write("done");
        const Json run = read_report(folder.report_path()).at("runs").as_array().at(0);
        int64_t at = 0, points = 0, epochs = 0;
        for (const Json& line : run.at("metrics").as_array()) {
            const Json* step = line.find("step");
            if (!step) {
                CHECK(line.at("epoch").as_int() == ++epochs);
                CHECK(std::abs(at - 1000 * epochs) < 16); // the line of the epoch is near its last step
                continue;
            }
            // The logged loss is the step number, so this is the mean of the numbers at + 1 to step.
            CHECK(line.at("loss").as_double() == doctest::Approx(double(at + 1 + step->as_int()) / 2).epsilon(1e-5));
            at = step->as_int(), ++points;
        }
        CHECK(at == steps);
        CHECK(epochs == steps / 1000);
        CHECK(points <= int64_t(Report::kSteps));
        CHECK(points > int64_t(Report::kSteps) / 2);
        CHECK(std::filesystem::file_size(folder.report_path()) < 300'000);
    }

    TEST_CASE("report: the confusion matrix has a row per true class") {
        const data::ImageSet set{4, 1, 1, 1, std::vector<uint8_t>(4), {0, 0, 1, 2}, {"a", "<b>", "c"}};
        const std::vector<double> seen = {0, 0, 2, 1, 0, 1, 1, 1}; // predicted class and rank of the true one
        CHECK(report_confusion(set, seen).dump() ==
              R"({"classes": ["a", "<b>", "c"], "counts": [[1, 0, 1], [1, 0, 0], [0, 1, 0]]})");
        CHECK_ERROR("two numbers for each of 4 images, got 7", report_confusion(set, std::span(seen).first(7)));
        CHECK_ERROR("below 3, got 3 (image 1)", report_confusion(set, std::vector<double>{0, 0, 3, 0, 0, 0, 0, 0}));
    }

    TEST_CASE("report: a large confusion matrix shows the classes with the most mistakes") {
        constexpr int32_t kClasses = 20'000, kImages = 1'000;
        data::ImageSet set{kImages, 1, 1, 1, std::vector<uint8_t>(kImages), {}, {}};
        for (int32_t i = 0; i < kClasses; ++i) set.classes.push_back(cat("class ", i));
        // Class 7 has 200 correct images. Class 8 has 100, all predicted as 9. The others below 710 have one each.
        std::vector<double> seen;
        for (int32_t i = 0; i < kImages; ++i) {
            const int32_t truth = i < 200 ? 7 : i < 300 ? 8 : i - 290;
            set.labels.push_back(truth);
            seen.insert(seen.end(), {double(truth == 8 ? 9 : truth), double(truth == 8)});
        }
        const Confusion confusion(set, seen);
        const std::vector<size_t> shown = confusion.shown();
        CHECK(shown.size() == Confusion::kMostShown);
        CHECK(std::is_sorted(shown.begin(), shown.end()));
        for (const size_t i : {8, 9}) CHECK(std::find(shown.begin(), shown.end(), i) != shown.end());
        CHECK(shown.back() < 710); // shows no class without images

        const Json json = report_confusion(set, seen);
        CHECK(json.dump().size() < 100'000);
        const Json::Array &classes = json.at("classes").as_array(), &counts = json.at("counts").as_array();
        const auto at = size_t(std::find(shown.begin(), shown.end(), 8) - shown.begin());
        CHECK(classes[at].as_string() == "class 8");
        CHECK(counts[at].as_array()[at + 1].as_int() == 100);
        CHECK(json.at("images").as_array()[at].as_int() == 100);
        CHECK(json.at("seen").as_array()[at].as_int() == 0);
        CHECK(json.at("right").as_int() == 900);
        CHECK(json.at("total").as_int() == 1000);
        CHECK(json.at("left_out").as_int() == kClasses - 100);

        const std::string text = confusion.text(kImages), csv = confusion.csv();
        CHECK(contains(text, "100 of 20000 classes"));
        CHECK(text.size() < 100'000);
        CHECK(csv.size() < 6'000'000);
        CHECK(contains(csv, "\nclass 19999,")); // each class has a row
    }

    TEST_CASE("run folder: takes a stop request once, and only for its run") {
        TempDir dir;
        const auto ask = [&] { write_file_atomic(dir / "runs/run/stop", ""); };
        {
            RunFolder folder = RunFolder::create(dir / "runs", "train", "run");
            folder.lock();
            ask();
            CHECK(folder.take_stop_request());
            CHECK_FALSE(std::filesystem::exists(dir / "runs/run/stop"));
            CHECK_FALSE(folder.take_stop_request());
            ask();
            CHECK(folder.take_stop_request());
            ask();
            CHECK_ERROR("another process trains", RunFolder::open(dir / "runs", "train", "run").lock());
        }
        RunFolder again = RunFolder::open(dir / "runs", "train", "run");
        CHECK(std::filesystem::exists(dir / "runs/run/stop"));
        again.lock();
        CHECK_FALSE(std::filesystem::exists(dir / "runs/run/stop"));
    }
}

} // namespace rg
