// What is written of many trainings: results.csv, results.jsonl, and report.html with the curves of all trials over
// each other, a table that compares them, and what became of each. The page is made of the trials' own pages and
// metrics, so that a trial that failed shows how far it came.
//
// Each of the three is replaced as a whole, so a write takes as long as there are trials. They are a view, and may be
// some seconds behind: what must not be lost is in the journal of the pool, one line per trial.
#pragma once

#include "models/run/progress.h"
#include "models/run/report.h"
#include "models/sweep/trial_table.h"

#include <functional>

namespace rg {

class TrialsReport {
public:
    /// `folder` is that of all; the rows outlive this. `options` gives all those of a trial, with their values.
    TrialsReport(std::string folder, const std::vector<TrialRow>& rows, std::function<Json(const TrialRow&)> options,
                 std::function<double()> clock = steady_seconds);

    /// What is known of them together; see report.h.
    void set(std::string_view member, Json value) { sweep_.set(member, std::move(value)); }
    /// A trial has begun or ended: its files are read again, and the change is written by this call or a later one.
    void update(const TrialRow& row);
    /// Writes what has changed, unless the last write was less than a second ago or less than 20 times as long as it
    /// took. So all writes of a run together take at most a twentieth of its time, however many trials there are.
    void keep_up();
    /// Writes all three files now, each atomically.
    void write(const std::string& state);

private:
    void read(const TrialRow& row);

    const std::string folder_;
    const std::vector<TrialRow>& rows_;
    const std::function<Json(const TrialRow&)> options_;
    const size_t steps_; // of a trial
    const std::function<double()> clock_;
    std::vector<std::string> trials_; // each as JSON, without what the row says
    Json sweep_ = Json::object();
    bool changed_ = false;
    double next_ = 0; // when keep_up() may write
};

} // namespace rg
