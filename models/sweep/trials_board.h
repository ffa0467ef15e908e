// Shows the progress of many trainings. On a terminal, it redraws one line per trial in place. In a pipe, for example
// under mpiexec, it prints a line when a trial starts, finishes an epoch or ends, and every ten seconds.
//
// A drawing in place must not wrap or scroll. So lines are cut to the width of the terminal. If there are more trials
// than lines, it shows the running trials and the numbers of the others.
#pragma once

#include "models/run/progress.h"
#include "models/sweep/trial_table.h"

namespace rg {

/// Returns the state of a trial as a line for people.
std::string trial_line(const TrialRow& row);

class TrialsBoard {
public:
    /// Writes to standard output. The rows outlive this.
    explicit TrialsBoard(const std::vector<TrialRow>& rows);
    /// For tests: a fixed size if live, and a clock in seconds.
    TrialsBoard(const std::vector<TrialRow>& rows, std::ostream& out, bool live, ScreenSize size,
                std::function<double()> clock);

    /// Shows a changed row, but not more often than needed. An `event` is shown at once.
    void update(const TrialRow& row, bool event);

private:
    void draw();

    const std::vector<TrialRow>& rows_;
    std::ostream& out_;
    const bool live_;
    const ScreenSize size_; // 0: ask the terminal each time, since it may be resized
    const std::function<double()> clock_;
    std::vector<double> printed_at_; // time when each row was last printed to a pipe
    double drawn_at_ = -1e9;         // time of the last drawing
    size_t drawn_lines_ = 0;
};

} // namespace rg
