// report.html: everything that is known of a run, as one page that needs neither network nor program to be read.
//
// The page is a template (models/run/page/, compiled in) with one JSON value inside, {"runs": [RUN, ...]}; the monitor
// (tools/monitor) serves the same template live. Each member of a RUN but "name" may be missing, and its part of the
// page with it:
//
//     name, state       text; the state is "running", "done", "stopped" or "failed", of a trial as in results.csv
//     note              one line of text: why it was stopped or failed
//     config            as in config.json
//     summary           one line of text: machine and data
//     tested            the set that it is tested on, "test" or "validation"
//     epochs            how many there are to be
//     steps_per_epoch   number of steps; without it, the lines tell
//     metrics           lines as in metrics.jsonl; steps may be thinned
//     bars              {"title", "unit", "groups": [{"name", "bars": [[what, value], ...], "note"}, ...]}
//     network, ranks, confusion   see the functions below
//
// With several runs the page overlays their curves and compares them in a sortable table, which has a column for every
// option in "config" that differs. For the trials of a sweep, there is a member beside "runs": "sweep", with its
// "name", "state", "summary", and if known "best", the name of a trial, and its "confusion" on the test set.
#pragma once

#include "data/dataset.h"
#include "models/run/data_parallel.h"
#include "models/run/run_folder.h"

namespace rg {

class Plan;

/// Lines of metrics.jsonl, with so many steps at most: beyond, neighbours are joined two by two, to their means.
class Metrics {
public:
    explicit Metrics(size_t points) : points_(points) {}
    void add(const Json& line);
    /// All of a file, if there is one.
    void add_file(const std::string& path);
    Json::Array lines() const;

private:
    /// Some steps in a row: the last one, and sums over all.
    struct Steps {
        int64_t step, epoch, count;
        double loss, accuracy, lr;
        Json line() const;
    };
    void join_neighbours();

    size_t points_;
    std::vector<Steps> steps_;
    int64_t steps_per_point_ = 1;
    Json::Array epochs_;
};

/// The report of one run: it is told each line that is logged, and writes the page when asked.
class Report {
public:
    static constexpr size_t kSteps = 2000;

    /// `name` and `config` as above. The lines that metrics.jsonl has already are taken over: a resumed run goes on.
    Report(const RunFolder& folder, Json config);

    /// A line of metrics.jsonl, as it is logged.
    void add(const Json& line) { metrics_.add(line); }
    /// Takes the lines of metrics.jsonl instead of those that it was told: the run has gone back.
    void reread(const RunFolder& folder);
    /// Any other member of the run.
    void set(std::string_view member, Json value) { run_.set(member, std::move(value)); }

    /// The run as the page takes it.
    Json run() const { return Json(run_).set("metrics", metrics_.lines()); }
    /// Writes the page, atomically.
    void write(const std::string& state);

private:
    std::string path_;
    Json run_;
    Metrics metrics_{kSteps};
};

/// The page with this data in it, the text of a JSON value.
std::string report_page(std::string_view data);
/// The data in such a page. Error: no file, or another one.
Json read_report(const std::string& path);

/// {"parameters", "parameter_bytes", "tensors": [[name, [extents]], ...]}; with the plan of a training step also
/// "planned_bytes", "unshared_bytes".
Json report_network(const Parameters& parameters, const Plan* plan = nullptr);

/// {"classes", "counts": a row per true class, "height", "width", "channels", "mistakes": [{"image", "truth", "seen",
/// "score", "pixels": base64}, ...]}: the mistakes made with the highest scores come first, and `examples` at most. Of
/// more classes than Confusion::kMostShown it has those that are shown, with sums over all of them: "images" and "seen"
/// per class, "right", "total", and "left_out", the number of the other classes.
Json report_confusion(const data::ImageSet& set, std::span<const Prediction> predictions, size_t examples = 24);

} // namespace rg
