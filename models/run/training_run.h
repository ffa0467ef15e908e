// The run of a training program: its position, whether to go on, and everything that it writes and shows.
//
//     TrainingRun run("train_x", settings.run, options, group, trial, {"seed"}); // finds the run to resume
//     return run.attempt([&] {
//         run.restore_parameters(parameters, optimizer); // and the position
//         run.begin(length, classes, text);              // when every rank has all that it needs
//         while (run.goes_on()) {
//             run.begin_epoch(has_data);
//             while (run.epoch_goes_on()) run.step(result); // the result of a step over all ranks
//             if (run.epoch_is_complete()) run.end_epoch(score);
//             run.save();
//         }
//         return run.end();
//     });
//
// Every rank makes the same calls; only rank 0 has a folder and a screen. Nothing is computed here. Parameters change
// in restore_parameters() and handle_non_finite() alone: Trainer (trainer.h) computes the steps.
#pragma once

#include "models/run/data_parallel.h"
#include "models/run/nan_guard.h"
#include "models/run/phase_clock.h"
#include "models/run/progress.h"
#include "models/run/report.h"
#include "models/run/run_folder.h"
#include "models/run/signals.h"
#include "models/run/tensorboard.h"
#include "models/run/training_state.h"
#include "models/run/trial.h"

#include <chrono>
#include <optional>

namespace rg {

struct LoadedCheckpoint;

struct RunOptions {
    std::string runs = default_runs_folder(), name, init;
    bool resume = false, tensorboard = false;
    int64_t checkpoint_every = 0, keep = 2;
    OnNan on_nan = OnNan::stop;
    void declare(Options& options);
};

/// A training step, over all ranks.
struct StepResult {
    int64_t images;           // in the mini-batch
    double loss, correct, lr; // mean loss, number of images that were classified correctly, learning rate
    bool stop = false;        // a rank was asked to stop
    bool last = false;        // a rank has no further batch in this epoch
    Verdict verdict = Verdict::good;
};

class TrainingRun {
public:
    /// From here on a signal is a stop request. With --resume: takes the run, loads its last checkpoint, and sets the
    /// options that the command line does not give. `fixed`: see restore_options(). All arguments outlive this.
    TrainingRun(std::string program, const RunOptions& settings, Options& options, par::Group& group, Trial& trial,
                std::initializer_list<std::string_view> fixed);
    ~TrainingRun();
    TrainingRun(const TrainingRun&) = delete;
    TrainingRun& operator=(const TrainingRun&) = delete;

    /// Runs `training` and returns its exit code. If loading was stopped, returns the code for that; a trial is left to
    /// its pool. If `training` throws, report.html says that the run has failed, and why.
    template <class Body>
    int attempt(const Body& training) {
        try {
            return training();
        } catch (const Stopped&) {
            if (!trial_.alone()) throw;
            return stopped_while_loading(group_);
        } catch (const std::exception& error) {
            fail(error.what());
            throw;
        }
    }

    /// The set that the network is tested on after each epoch.
    std::string tested = "test";
    /// Measures the time of each phase of the epoch.
    PhaseClock phases;

    par::Group& group() const { return group_; }
    bool resumed() const { return checkpoint_ != nullptr; }

    /// Restores values, optimizer and position from the checkpoint, or the values alone from --init; else leaves them.
    /// `parameters` outlives this.
    void restore_parameters(Parameters& parameters, const OptimizerState& optimizer);

    /// The length of the training; a stop may end it earlier.
    struct Length {
        int64_t steps = 0, batches = 0; // in all; in an epoch
        int64_t epochs() const { return std::max<int64_t>(1, steps / batches + (steps % batches != 0)); }
    };
    /// Collective. If any rank fails before this call, no folder is created. `what` is text for people: the machine,
    /// the data, the network.
    void begin(const Length& length, const std::vector<std::string>& classes, const std::string& what);

    const Position& position() const { return position_; }
    /// Epochs before the next step, with the fraction of the current one.
    double epochs() const { return double(position_.epoch - 1) + double(position_.batch) / double(length_.batches); }

    /// True until all steps are done or a rank was asked to stop. The same on all ranks, as are the next two.
    bool goes_on() const { return position_.step < length_.steps && !stopped_; }
    /// True while every rank has a further batch in this epoch; false after a rollback, which leaves the epoch.
    bool epoch_goes_on() const { return goes_on() && epoch_goes_on_; }
    /// True if the epoch had all its batches, so that the network is to be tested.
    bool epoch_is_complete() const { return position_.batch == length_.batches; }
    /// True if a rank was asked to stop.
    bool stopped() const { return stopped_; }

    /// Collective. Begins the epoch of position(), or goes on with it. `has_data`: this rank has a batch.
    void begin_epoch(bool has_data);
    /// Decides about the step after position(): first_non_finite() has looked at its gradients and its loss over all
    /// ranks. If a value is not finite, does what --on-nan says. A rollback moves position() back.
    Verdict handle_non_finite(double loss, const Tensor& non_finite_at);
    /// Logs a step and moves position() on, unless the step was rolled back. Saves a checkpoint if one is due.
    void step(const StepResult& result);
    /// Collective. Logs the score and moves position() to the next epoch.
    void end_epoch(const Score& test, std::vector<EpochStatus::Extra> extras = {});
    /// Returns true if this rank knows of a stop request: a signal, a file in the folder, or the trial's answer to a
    /// line. Ranks may differ.
    bool asked_to_stop();

    /// Saves the model and a checkpoint. Throws Error, before anything is written, if a value is not finite. Trials are
    /// compared by the accuracy of their last epoch: a trial that is stopped later keeps the model of that epoch.
    void save() { save_model(), save_checkpoint(); }
    /// Sets a member of the run's page (report.html; see report.h). After begin().
    void report(const std::string& name, Json value);
    /// Shows a line to people; adds a line to the metrics and tells it to the trial.
    void note(const std::string& line) {
        if (progress_) progress_->note(line);
    }
    void log(const Json& line);
    /// Tells the trial that this rank is alive, while there is nothing to report.
    void pulse() { trial_.pulse(); }
    /// Collective. Returns the exit code: see signals.h.
    [[nodiscard]] int end();

private:
    void save_model();
    void save_checkpoint();
    void fail(const std::string& why);

    using Clock = std::chrono::steady_clock;
    const std::string program_;
    const RunOptions& settings_;
    Options& options_;
    par::Group& group_;
    Trial& trial_;
    std::unique_ptr<LoadedCheckpoint> checkpoint_;
    std::optional<RunFolder> folder_;
    std::optional<Report> report_;
    std::optional<EventFile> events_;
    std::optional<Progress> progress_;
    std::optional<NanGuard> guard_;
    Parameters* parameters_ = nullptr;
    OptimizerState optimizer_;
    Position position_;
    bool stopped_ = false, epoch_goes_on_ = false;
    bool untested_ = false; // the network has had steps since it was last tested
    bool asked_ = false;    // to stop, by the trial or by a file in the folder
    Length length_;
    Metadata classes_;
    Clock::time_point epoch_begin_, last_step_; // testing and saving do not count as time of an epoch
    double images_before_ = 0;                  // of the epoch, when it was begun or resumed
};

} // namespace rg
