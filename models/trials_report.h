// report.html of many trainings: the curves of all trials over each other, a table that compares them, and what became
// of each. It is made of the trials' own pages and metrics, so that a trial that failed shows how far it came.
#pragma once

#include "models/report.h"
#include "models/trial_table.h"

namespace rg {

class TrialsReport {
public:
    /// `folder` is that of all; the rows outlive this. `options`: all those of each trial, with their values.
    TrialsReport(std::string folder, const std::vector<TrialRow>& rows, std::vector<Json> options);

    /// What is known of them together; see report.h.
    void set(std::string_view member, Json value) { sweep_.set(member, std::move(value)); }
    /// The files of a trial have changed: they are read anew.
    void read(const TrialRow& row);
    /// Writes the page, atomically.
    void write(const std::string& state);

private:
    const std::string folder_;
    const std::vector<TrialRow>& rows_;
    const std::vector<Json> options_;
    const size_t steps_; // of a trial
    std::vector<Json> trials_;
    Json sweep_ = Json::object();
};

} // namespace rg
