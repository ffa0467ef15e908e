// Tests that text from outside passes unchanged between ranks, files and shells, or is rejected. par/channels.md and
// data/channels.md list these channels. tests/core/text.cpp tests output to a terminal.
#include "core/atomic_file.h"
#include "core/json.h"
#include "core/text.h"
#include "data/command.h"
#include "models/run/report.h"
#include "models/sweep/trial_table.h"
#include "par/task_pool.h"
#include "tests/temp_dir.h"
#include "tests/thread_link.h"

#include <algorithm>
#include <doctest/doctest.h>

namespace rg {
namespace {

const std::vector<std::string> kEvil = {
    "x\n-1 pipe:id > it-ran; cat ok.tar",
    "$(touch it-ran)`touch it-ran`;touch it-ran|touch it-ran&",
    "'; touch it-ran; '\"; touch it-ran; \"\\",
    std::string("a\0b", 3),
    "\r\n{\"state\": \"finished\"}\n,\"\"\",\t</script><!--\u2028",
    "\xff\xc3(\xed\xa0\x80\x9b",
    "../../etc/passwd",
    "--data=pipe:touch it-ran",
    "=cmd|' /C calc'!A0",
    "",
    std::string(1 << 20, 'n') + "\n",
};

} // namespace

TEST_SUITE("models") {
    TEST_CASE("channels: ranks exchange any text unchanged") {
        // A task pool sends arguments, reports, outputs and errors. A task in its journal is not repeated.
        const TempDir dir;
        for (const bool again : {false, true}) {
            std::atomic<int> runs = 0;
            std::vector<std::string> outputs, reports, errors;
            const par::TaskTable functions{
                {"echo",
                 [&](par::TaskContext& task, const Json& text) {
                     ++runs;
                     task.report(text);
                     return text;
                 }},
                {"fail", [](par::TaskContext&, const Json& text) -> Json { throw Error("e" + text.as_string()); }}};
            par::run_threads(3, [&](par::Link& link) {
                par::run_task_pool(
                    link, functions,
                    [&](par::TaskPool& pool) {
                        pool.on_report(
                            [&](const par::TaskRecord&, const Json& text) { reports.push_back(text.as_string()); });
                        for (const std::string& text : kEvil) pool.submit("echo", text);
                        for (const auto* task : pool.fetch_outputs()) outputs.push_back(task->output.as_string());
                        for (const std::string& text : kEvil) errors.push_back(pool.submit("fail", text).wait().error);
                    },
                    link.rank() == 0 ? dir / "journal" : "");
            });
            CHECK(outputs == kEvil);
            CHECK(runs == (again ? 0 : int(kEvil.size())));
            std::sort(reports.begin(), reports.end());
            std::vector<std::string> sorted = kEvil;
            std::sort(sorted.begin(), sorted.end());
            CHECK(reports == (again ? std::vector<std::string>{} : sorted));
            for (size_t i = 0; i < kEvil.size(); ++i) // the text of an exception ends at a zero byte
                CHECK(errors[i] == "e" + kEvil[i].substr(0, kEvil[i].find('\0')));
        }
    }

    TEST_CASE("channels: a shell gets any text as one word") {
        const TempDir dir;
        for (const std::string& text : kEvil) {
            const auto said = [&] {
                data::run_command(cat("printf %s ", shell_word(text), " > ", dir / "said"));
                return read_file(dir / "said");
            };
            if (text.find('\0') != std::string::npos || text.size() > 100'000) // no program argument can have these
                CHECK_THROWS_AS(said(), Error);
            else
                CHECK(said() == text);
        }
        CHECK_FALSE(std::filesystem::exists("it-ran"));
    }

    TEST_CASE("channels: files return any text, or escape it") {
        const TempDir dir;
        std::string csv = "text\n", report;
        for (const std::string& text : kEvil) {
            CHECK(Json::parse(Json(text).dump(), "t").as_string() == text);
            const std::string page = report_page(Json::object().set("runs", Json::array().push(text)).dump());
            write_file_atomic(dir / "page", page);
            CHECK(read_report(dir / "page").at("runs").as_array()[0].as_string() == text);
        }
        // results.csv has one line per trial, whatever its settings and its note contain.
        std::vector<TrialRow> rows(kEvil.size());
        for (size_t i = 0; i < rows.size(); ++i) {
            rows[i].number = int64_t(i) + 1;
            rows[i].settings = {{"init", kEvil[i]}};
            rows[i].note = kEvil[i];
        }
        write_results(dir.path(), rows);
        const std::string table = read_file(dir / "results.csv");
        CHECK(std::count(table.begin(), table.end(), '\n') == std::ptrdiff_t(rows.size()) + 1);
        for (const char* formula : {",=", ",-", ",\"=", ",\"-"}) CHECK_FALSE(contains(table, formula));
        const std::vector<TrialSettings> read =
            parse_trials("trial,init,state,seconds,note,folder\n" + table.substr(table.find('\n') + 1), "t");
        REQUIRE(read.size() == rows.size());
        for (size_t i = 0; i < rows.size(); ++i)
            if (!kEvil[i].empty())
                CHECK(read[i][1] == std::pair<std::string, std::string>("init", printable(kEvil[i])));
    }
}

} // namespace rg
