// See trials_report.h. In the sweep's report, a trial has at most 400 lines of steps, and no pictures of samples. So
// the page of 100 trials has only some megabytes. Trials are kept in memory as text, since Json values would need many
// times more.
#include "models/sweep/trials_report.h"

#include "core/atomic_file.h"

#include <algorithm>
#include <filesystem>

namespace rg {
namespace {

// write_if_due() pauses between two writes for at least kMinPause seconds, and kPausePerWrite times the duration of the
// last write.
constexpr double kMinPause = 1, kPausePerWrite = 20;

} // namespace

TrialsReport::TrialsReport(std::string folder, const std::vector<TrialRow>& rows, const Ranking& ranking,
                           std::function<Json(const TrialRow&)> options, std::function<double()> clock)
    : folder_(std::move(folder)),
      rows_(rows),
      ranking_(ranking),
      options_(std::move(options)),
      points_(std::clamp<size_t>(20'000 / std::max<size_t>(1, rows.size()), 50, 400)),
      clock_(std::move(clock)),
      trials_(rows.size()),
      sweep_(report_origin()) {
    for (const TrialRow& row : rows_) read(row);
}

void TrialsReport::read(const TrialRow& row) {
    const size_t i = size_t(row.number) - 1;
    Json trial =
        Json::object().set("name", cat(row.number)).set("config", Json::object().set("options", options_(row)));
    Json::Array metrics;
    try {
        const Json page = read_report(cat(folder_, "/", row.folder, "/report.html"));
        const Json& run = page.at("runs").as_array().at(0);
        for (const char* name : {"config", "summary", "tested", "begun", "seconds_before", "written", "epochs",
                                 "steps_per_epoch", "bars", "network", "ranks", "confusion"})
            if (const Json* value = run.find(name)) trial.set(name, *value);
        metrics = metrics_of(cat(folder_, "/", row.folder, "/metrics.jsonl"), points_);
    } catch (const std::exception&) {
        // The trial has not started, or its files are on a disk that this machine cannot read. This must not end a
        // sweep.
    }
    trials_[i] = trial.set("metrics", std::move(metrics)).dump();
}

void TrialsReport::update(const TrialRow& row) {
    unread_.insert(row.number);
    write_if_due();
}

void TrialsReport::write_if_due() {
    if (!unread_.empty() && clock_() >= next_write_) write("running");
}

void TrialsReport::write(const std::string& state) {
    const double begin = clock_();
    for (const int64_t number : std::exchange(unread_, {})) read(rows_[size_t(number) - 1]);
    write_results(folder_, rows_);
    std::string runs;
    for (const TrialRow& row : rows_) {
        Json state_and_note = Json::object().set("state", row.state);
        if (!row.note.empty()) state_and_note.set("note", row.note);
        std::string members = state_and_note.dump();
        members.back() = ',';
        runs += cat(runs.empty() ? "" : ", ", members, std::string_view(trials_[size_t(row.number) - 1]).substr(1));
    }
    sweep_.set("name", std::filesystem::path(folder_).filename().string())
        .set("state", state)
        .set("written", unix_seconds());
    const std::vector<const TrialRow*> best = best_first(rows_, ranking_);
    if (!best.empty()) sweep_.set("best", cat(best.front()->number));
    write_file_atomic(folder_ + "/report.html",
                      report_page(cat("{\"sweep\": ", sweep_.dump(), ", \"runs\": [", runs, "]}")));
    const double end = clock_();
    next_write_ = end + std::max(kMinPause, kPausePerWrite * (end - begin));
}

} // namespace rg
