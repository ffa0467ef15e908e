// Writes the results of many trainings: results.csv, results.jsonl, and report.html, which overlays the curves of all
// trials and compares them in a table. The page is made from the report.html and metrics.jsonl of each trial, so it
// also shows the curves of failed trials.
//
// Each file is replaced as a whole, so the time of a write grows with the number of trials. So the files are written
// seldom, and may be seconds old, or older if there are many trials. The results that must not be lost are in the
// journal of the task pool, which gets a line when a trial ends.
#pragma once

#include "core/clock.h"
#include "models/run/report.h"
#include "models/sweep/trial_table.h"

#include <functional>
#include <set>

namespace rg {

class TrialsReport {
public:
    /// `folder` is the folder of the sweep. `options` returns all options of a trial with their values. The rows must
    /// outlive this.
    TrialsReport(std::string folder, const std::vector<TrialRow>& rows, const Ranking& ranking,
                 std::function<Json(const TrialRow&)> options, std::function<double()> clock = seconds_now);

    /// Sets a member of "sweep"; see report.h.
    void set(std::string_view member, Json value) { sweep_.set(member, std::move(value)); }
    /// Notes that the files of a trial have changed, and then calls write_if_due(). Call it when a trial has started or
    /// ended, and after its epochs.
    void update(const TrialRow& row);
    /// Writes the files if update() was called since the last write. Does nothing if the last write ended less than a
    /// second ago, or less than 20 times its duration ago. So these writes take about 1/20 of the run's time or less.
    void write_if_due();
    /// Writes all three files now, each atomically. `state` is that of the sweep in the page; see report.h.
    void write(const std::string& state);

private:
    void read(const TrialRow& row);

    std::set<int64_t> unread_; // numbers of the trials whose files have changed since they were read
    const std::string folder_;
    const std::vector<TrialRow>& rows_;
    const Ranking ranking_;
    const std::function<Json(const TrialRow&)> options_;
    const size_t points_; // largest number of lines of steps per trial
    const std::function<double()> clock_;
    std::vector<std::string> trials_; // per trial, its RUN (see report.h) as JSON text, without state and note
    Json sweep_;
    double next_write_ = 0; // earliest time for write_if_due()
};

} // namespace rg
