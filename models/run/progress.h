// Shows the progress of a run: a line per epoch, and within an epoch a live line on a terminal, or a plain line
// about every ten seconds in a pipe. --progress can choose another output. mpiexec makes a pipe of the output.
//
// The live line is redrawn at most ten times a second, and erased when the run ends. The first plain line comes after
// two seconds. A line drops fields that do not fit into its width (80 columns in a pipe) instead of wrapping. In the
// line of an epoch, metrics after the first follow on lines of their own. In the line of a step, samples per second and
// time left come from averages over about the last ten seconds. The time of the test after an epoch does not count.
// Under MPI only rank 0 shows progress.
#pragma once

#include "core/options.h"

#include <functional>
#include <ostream>
#include <vector>

namespace rg {

/// One finished step. `epoch` and `step` count from 1 over the whole run, which ends at `epochs` and `steps`. Numbers
/// that are 0 are unknown, and omitted.
struct StepStatus {
    int64_t epoch = 0, epochs = 0, step = 0, steps = 0;
    std::vector<std::string> metrics = {}; // over the epoch so far, such as "loss 1.234" and "acc 51.2 %"
    double samples = 0;                    // number of samples in this step, over all ranks
    int64_t epoch_left = 0;                // number of steps left in this epoch
};

/// One finished epoch. The metrics of a set are texts such as "loss 1.2345" and "acc 51.23 %", the main ones first.
struct EpochStatus {
    struct Set {
        std::string name;
        std::vector<std::string> metrics = {};
    };
    int64_t epoch = 0, epochs = 0;
    Set train = {"train"}, test = {"test"};
    double samples_per_second = 0, seconds = 0;
};

/// Selects the output between the lines of the epochs: plain lines or a live line (`bar`). `automatic` is `bar` on a
/// terminal, else `line`. With `none`, a program makes no Progress.
enum class ProgressKind { automatic, line, bar, none };
/// Declares --progress. Trainings and programs of trials share it.
void declare_progress(Options& options, ProgressKind* kind);

/// How to write to an output.
struct ProgressStyle {
    bool live = false;   // redraw lines in place; false: print a line every ten seconds
    bool colour = false; // use colours
    int columns = 0;     // width of a line; 0: that of screen_size(), asked for each line, since it may change
};
/// Returns the style for standard output. It has colour on a terminal, unless TERM is unset or "dumb", or NO_COLOR is
/// not empty (no-color.org).
ProgressStyle style_of(ProgressKind kind);
enum class Colour { none, red, green, yellow };
/// Returns the text in this colour, by escape codes, or unchanged if `use` is false or the colour is `none`.
std::string coloured(const std::string& text, Colour colour, bool use);
struct ScreenSize {
    int columns = 0, lines = 0;
};
/// Returns the current size of the terminal, or 80 x 24 if it is unknown.
ScreenSize screen_size();

class Progress {
public:
    /// Writes to standard output. `samples` is the short name of the samples, for rates.
    explicit Progress(ProgressKind kind, const char* samples = "img");
    /// For tests: writes to `out`. `clock` returns seconds.
    Progress(std::ostream& out, const ProgressStyle& style, std::function<double()> clock, const char* samples = "img");
    ~Progress(); // clears the live line
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    void step(const StepStatus& status);
    void epoch(const EpochStatus& status);
    /// Erases the live line and prints `line`, for example a warning.
    void note(const std::string& line, Colour colour = Colour::none);
    /// Prints the line of the last step, unless it or the line of its epoch was printed already.
    void end();
    /// Returns the width of a line.
    int columns() const { return style_.columns > 0 ? style_.columns : screen_size().columns; }
    /// Returns the seconds since the start.
    double seconds() const { return clock_() - start_; }

private:
    void clear();
    std::string step_line(int columns) const;

    std::ostream& out_;
    const ProgressStyle style_;
    const std::function<double()> clock_;
    const std::string rate_unit_; // such as "img/s"
    const double start_;
    double last_step_, last_draw_ = -1e9;
    double next_line_;                             // earliest time of the next plain line
    StepStatus status_;                            // of the last step
    bool unprinted_ = false;                       // true if the last step was not printed
    double seconds_ = 0, samples_ = 0, steps_ = 0; // sums over the steps so far that decay exponentially with time
    bool drawn_ = false;                           // true if the live line is on the screen
};

/// Returns the line of a step in at most `columns` characters. If there is room, it has the time left of the epoch and
/// that of the run. A rate or a time that is 0 is unknown, and omitted.
std::string step_text(const StepStatus& status, double samples_per_second, double step_seconds, int columns,
                      const std::string& rate_unit = "img/s");
/// Returns the line of an epoch. It has the first two metrics of each set; others follow on a line of their own.
std::string epoch_text(const EpochStatus& status, int columns, const std::string& rate_unit = "img/s");
/// Returns a duration, such as 0:07 or 1h02m.
std::string duration_text(double seconds);
/// Returns a text whose parts, separated by "; ", are on lines of their own. Lines of more than `columns` characters
/// are wrapped between words.
std::string folded(const std::string& text, int columns);

} // namespace rg
