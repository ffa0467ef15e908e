// Writes report.html: all results of a run as one page, readable offline in any browser.
//
// The page is a template (models/run/page/, compiled in) with one JSON value inside, {"runs": [RUN, ...]}; the monitor
// (tools/monitor) serves the same template live. A RUN has these members. All but "name" are optional; the page omits
// the parts for which members are missing:
//
//     name, state       text; the state is "running", "done", "stopped" or "failed"; a trial has those of TrialRow
//     note              one line of text: why the run failed, or why a trial was stopped or failed
//     config            as in config.json
//     summary           one line of text: machine, data and network
//     begun, written    seconds since 1970, when the program began (or resumed) the run, and when it wrote this page
//     seconds_before    seconds of all earlier starts of a resumed run, each until its last report
//     build, command    version and git commit of the program, see kBuild; the command line that started it
//     tested            name of the set that the network is tested on, "test" or "validation"
//     epochs, steps     planned number of epochs, and of steps of a loop that plans those
//     steps_per_epoch   number of steps; if missing, the page takes it from the metrics
//     fields            {name: text or number}, shown as tiles
//     metrics           lines as in metrics.jsonl; consecutive steps may be averaged
//     bars              {"title", "unit", "groups": [{"name", "bars": [[label, value], ...], "note"}, ...]}
//     network, ranks, confusion   see report_network(), PhaseClock::gather(), report_confusion()
//     predicted         of a regression: [{"name", "unit", "points": [[true value, predicted value], ...]}, ...]
//     samples           the test samples with the largest errors: [{"title", "legend": [[class, red, green, blue],
//                       ...], "samples": [{"name", "caption", "pictures": [base64 of a PNG, ...]}, ...]}, ...]
//     best_on_test      {"confusion", "predicted", "samples"}, of the best model on the test set, if "tested" is a
//                       validation set
//
// If there are several runs, the page overlays their curves and compares them in a sortable table. It has a column for
// every option in "config" that differs, except the names of the runs and their folder. For the trials of a sweep, a
// member "sweep" stands beside "runs". It has "name", "state", "summary", "begun", "written", "build", "command", and
// "rank_by" (MetricInfo::json() of the metric that ranks the trials), and if known "best" (the name of a trial) and
// "confusion", "predicted" and "samples" (of the best trial on the test set).
#pragma once

#include "core/parameters.h"
#include "data/dataset.h"
#include "models/run/confusion.h"
#include "models/run/run_folder.h"

#include <functional>

namespace rg {

class Plan;

/// Returns the lines of a file metrics.jsonl, except damaged ones, or none if there is no such file. If it has more
/// than `points` lines of steps, each in the result stands for several consecutive steps: it has step and epoch of the
/// last one, and the means of all other numbers.
Json::Array metrics_of(const std::string& path, size_t points);

/// The report of one run. The page has the lines that metrics.jsonl in the folder has when the page is written.
class Report {
public:
    static constexpr size_t kSteps = 2000; // largest number of lines of steps in the page

    /// If the run is resumed, takes "seconds_before" from the report in its folder.
    Report(const RunFolder& folder, Json config);

    /// Sets any member of the run except "metrics".
    void set(std::string_view member, Json value) { run_.set(member, std::move(value)); }

    /// Returns a function that writes the page, atomically, with the members that are set now. It may outlive this.
    std::function<void()> writer_of(const std::string& state);
    void write(const std::string& state) { writer_of(state)(); }

private:
    std::string path_, metrics_path_;
    Json run_;
};

/// Returns {"begun", "build", "command"}, members of a RUN, for a run that this process begins now.
Json report_origin();
/// Returns the page with `data` in it. `data` is the text of a JSON value.
std::string report_page(std::string_view data);
/// Returns the data in a file that holds a page of report_page(). Throws Error if there is none.
Json read_report(const std::string& path);

/// Returns {"parameters": the number of values, "parameter_bytes", "tensors": [[name, [extents]], ...],
/// "planned_bytes": the memory of the plan of a training step, "unshared_bytes": the same without reuse of memory}.
Json report_network(const Parameters& parameters, const Plan& plan);

/// Returns {"classes", "counts": a row per true class}. `predicted` is [count 2], as for Confusion. If not all classes
/// are shown (see Confusion), the result also has "images" and "seen" (the number of images of each shown class, and of
/// predictions as this class), "right" (all correct predictions), "total" (all images), and "left_out" (the number of
/// classes that are not shown).
Json report_confusion(const data::ImageSet& set, std::span<const double> predicted);

} // namespace rg
