// What a person sees while many trainings run: a line for each trial, redrawn in place on a terminal; in a pipe, such
// as mpiexec makes of every output, a line where a trial begins, ends an epoch and ends, and from time to time between.
//
// What is drawn in place never wraps nor scrolls, so that the next drawing meets it: lines are cut to the width, and
// where there are more trials than lines, those that run are shown, and how many the others are.
#pragma once

#include "models/run/progress.h"
#include "models/sweep/trial_table.h"

namespace rg {

/// A trial as it stands, for people.
std::string line_of(const TrialRow& row);

class TrialsBoard {
public:
    /// On standard output. The rows outlive this.
    explicit TrialsBoard(const std::vector<TrialRow>& rows);
    /// For tests: a fixed size if live, and a clock in seconds.
    TrialsBoard(const std::vector<TrialRow>& rows, std::ostream& out, bool live, ScreenSize size,
                std::function<double()> clock);

    /// A row has changed: `event`, by more than a step.
    void update(const TrialRow& row, bool event);

private:
    void draw();

    const std::vector<TrialRow>& rows_;
    std::ostream& out_;
    const bool live_;
    const ScreenSize size_; // none: ask the terminal each time, it may be resized
    const std::function<double()> clock_;
    std::vector<double> said_; // when a row was last printed, in a pipe
    double drawn_at_ = -1e9;
    size_t drawn_ = 0; // lines
};

} // namespace rg
