// What a person sees while a training runs: one live line on a terminal, and one plain line per epoch everywhere.
//
// The live line is redrawn at most ten times a second, loses fields rather than wrap when the window is narrow, and
// is gone when the run ends. Rate and time left come from the last ten seconds or so of steps; time between epochs
// (validation, checkpoints) does not count. Under MPI only rank 0 has one of these.
#pragma once

#include "core/base.h"

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

/// One finished epoch.
struct EpochStatus {
    int64_t epoch = 0, epochs = 0;
    double train_loss = 0, train_accuracy = 0, test_loss = 0, test_accuracy = 0;
    double images_per_second = 0, seconds = 0;
    std::string tested = "test"; // the set that test_loss and test_accuracy are of
    /// What only some programs know: its name in the metrics, and a format for people with a unit.
    struct Extra {
        const char *name, *format;
        double value;
    };
    std::vector<Extra> extras = {};
};

/// Whether standard output is one that can be redrawn, and how large it is now.
bool standard_output_is_terminal();
struct ScreenSize {
    int columns = 0, lines = 0;
};
ScreenSize screen_size();
/// Of a clock that is never set.
double steady_seconds();

class Progress {
public:
    /// To standard output; live when that is a terminal.
    Progress();
    /// For tests: a fixed width, and a clock in seconds.
    Progress(std::ostream& out, bool live, int columns, std::function<double()> clock);
    ~Progress(); // clears the live line
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    void step(const StepStatus& status);
    void epoch(const EpochStatus& status);
    /// Any other line (a warning, what was saved): above the live line, never through it.
    void note(const std::string& line);

private:
    void clear();

    std::ostream& out_;
    bool live_;
    int columns_; // 0: ask the terminal each time, it may be resized
    std::function<double()> clock_;
    double last_step_, last_draw_ = -1e9;
    double seconds_ = 0, images_ = 0, steps_ = 0; // sums that fade with time
    bool drawn_ = false;
};

/// The live line in at most `columns` characters; a rate or time left of 0 is not known yet and left out.
std::string step_text(const StepStatus& status, double images_per_second, double seconds_left, int columns);
std::string epoch_text(const EpochStatus& status);

} // namespace rg
