// Shows the progress of a training: a live line on a terminal, and a plain line per epoch everywhere.
//
// The live line is redrawn at most ten times a second. In a narrow window it drops fields instead of wrapping. It is
// erased when the run ends. Rate and time left are averages over about the last ten seconds of steps; time between
// epochs (validation, checkpoints) does not count. Under MPI only rank 0 shows progress.
#pragma once

#include "ringgrad/core/base.h"

#include <functional>
#include <ostream>
#include <vector>

namespace rg {

/// One finished training step. Accuracies are fractions; epochs and steps count from 1, over the whole training.
struct StepStatus {
    int64_t epoch = 0, epochs = 0, step = 0, steps = 0;
    double loss = 0, accuracy = 0;
    int64_t images = 0; // in this step, over all ranks
};

/// A metric that only one program has: its name in metrics.jsonl, and a printf format with its label and unit.
struct ExtraMetric {
    std::string name, format;
    double value;
};

/// One finished epoch.
struct EpochStatus {
    int64_t epoch = 0, epochs = 0;
    double train_loss = 0, train_accuracy = 0, test_loss = 0, test_accuracy = 0;
    double images_per_second = 0, seconds = 0;
    std::string test_set_name = "test"; // name of the set of test_loss and test_accuracy
    std::vector<ExtraMetric> extras = {};
};

/// Returns true if standard output is a terminal that can redraw a line.
bool standard_output_is_terminal();
struct ScreenSize {
    int columns = 0, lines = 0;
};
/// Returns the current size of the terminal, or 80 x 24 if it is unknown.
ScreenSize screen_size();
/// Returns the time of a monotonic clock, in seconds.
double steady_seconds();

class Progress {
public:
    /// Writes to standard output, with a live line if that is a terminal.
    Progress();
    /// For tests: writes lines of `columns` characters to `out`. `clock` returns seconds.
    Progress(std::ostream& out, bool live, int columns, std::function<double()> clock);
    ~Progress(); // clears the live line
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    void step(const StepStatus& status);
    void epoch(const EpochStatus& status);
    /// Prints any other line, for example a warning, above the live line.
    void note(const std::string& line);

private:
    void clear();

    std::ostream& out_;
    bool live_;
    int columns_; // 0: ask the terminal each time, since it may be resized
    std::function<double()> clock_;
    double last_step_, last_draw_ = -1e9;
    double seconds_ = 0, images_ = 0, steps_ = 0; // sums that decay exponentially
    bool drawn_ = false;
};

/// Returns the live line in at most `columns` characters. It omits `images_per_second` and `seconds_left` if they are
/// 0, which means unknown.
std::string step_text(const StepStatus& status, double images_per_second, double seconds_left, int columns);
std::string epoch_text(const EpochStatus& status);

} // namespace rg
