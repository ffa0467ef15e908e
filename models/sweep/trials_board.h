// Shows the progress of many trainings. On a terminal, it redraws one line per trial in place. In a pipe, also under
// mpiexec, it prints a line when a trial starts, ends an epoch or ends, and one per running trial every ten seconds.
//
// Lines that are redrawn in place must not wrap or scroll. So they are cut to the width of the terminal. If there are
// more trials than lines, the board shows only running trials, and how many trials are in each state.
#pragma once

#include "ringgrad/models/run/progress.h"
#include "ringgrad/models/sweep/trial_table.h"

namespace rg {

/// Returns the state of a trial as a line for people.
std::string trial_line(const TrialRow& row);

class TrialsBoard {
public:
    /// Writes to standard output. The rows outlive this.
    explicit TrialsBoard(const std::vector<TrialRow>& rows);
    /// For tests: writes to `out`, as on a terminal of this size if `live`, else as in a pipe. `clock` returns seconds.
    TrialsBoard(const std::vector<TrialRow>& rows, std::ostream& out, bool live, ScreenSize size,
                std::function<double()> clock);

    /// Shows a changed row. An `event` is shown at once; other changes only if the last output is old enough.
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
