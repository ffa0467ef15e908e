// Shows the progress of many trainings. On a terminal, it redraws one line per trial in place. In a pipe, also under
// mpiexec, it prints one line when a trial ends, with the best trial so far, and one per running trial every ten
// seconds. --progress chooses between them, as for one training.
//
// Lines that are redrawn in place must not wrap or scroll. So they are cut to the width of the terminal. If there are
// more trials than lines, the board shows as many running trials as fit, and counts running, queued and ended ones.
#pragma once

#include "core/clock.h"
#include "models/run/progress.h"
#include "models/sweep/trial_table.h"

namespace rg {

/// Returns a line for people: the state of a trial, its value of the ranking metric, and those of its settings that are
/// in `differing`; see differing_settings().
std::string trial_line(const TrialRow& row, const Ranking& ranking, const std::set<std::string>& differing);

class TrialsBoard {
public:
    /// Writes to `out`. The rows must outlive this. `size` is that of the terminal; 0 x 0: ask the terminal before each
    /// drawing. `clock` returns seconds. Tests give both.
    TrialsBoard(const std::vector<TrialRow>& rows, const Ranking& ranking, std::ostream& out,
                const ProgressStyle& style, ScreenSize size = {}, std::function<double()> clock = seconds_now);

    /// Shows a changed row; `at_once` is true if its trial has started or ended, or has finished an epoch. On a
    /// terminal, draws all rows: then at once, else at most every 0.1 s. In a pipe, prints the row when its trial ends,
    /// and before that at most every 10 s.
    void update(const TrialRow& row, bool at_once);

private:
    void draw();

    const std::vector<TrialRow>& rows_;
    const Ranking ranking_;
    const std::set<std::string> differing_;
    std::ostream& out_;
    const ProgressStyle style_;
    const ScreenSize size_; // 0: ask the terminal each time, since it may be resized
    const std::function<double()> clock_;
    std::vector<double> printed_at_; // by row, in a pipe: time of its start or of its last line
    double drawn_at_ = -1e9;         // time of the last drawing
    size_t drawn_lines_ = 0;
};

} // namespace rg
