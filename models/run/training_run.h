// The run of a training program: its position, stop requests, and all its files and output.
//
//     TrainingRun run("train_x", settings.run, options, group, trial); // opens the run to resume
//     return run.supervise([&] {
//         run.restore_parameters(parameters, optimizer); // also restores the position
//         run.begin(length, classes, text);              // creates the folder
//         while (run.goes_on()) {
//             run.begin_epoch(has_data);
//             while (run.epoch_goes_on()) run.end_step(result); // the result of a step, over all ranks
//             if (run.epoch_is_complete()) run.end_epoch(score);
//             run.save();
//         }
//         return run.end();
//     });
//
// Every rank makes the same calls; only rank 0 has a folder and a screen. Trainer (trainer.h) computes the steps. This
// class changes parameters only in restore_parameters() and handle_non_finite().
#pragma once

#include "models/run/data_parallel.h"
#include "models/run/nan_guard.h"
#include "models/run/phase_clock.h"
#include "models/run/report.h"
#include "models/run/run_folder.h"
#include "models/run/signals.h"
#include "models/run/tensorboard.h"
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

/// The result of a training step, over all ranks.
struct StepResult {
    int64_t images;           // in the mini-batch
    double loss, correct, lr; // mean loss, number of correctly classified images, learning rate
    bool stop = false;        // a rank has a stop request
    bool last = false;        // a rank has no further batch in this epoch
    Verdict verdict = Verdict::applied;
};

class TrainingRun {
public:
    /// Collective. Makes signals stop requests. With --resume, locks the run's folder, loads its last checkpoint, and
    /// restores the options that the command line does not give. All arguments outlive this.
    TrainingRun(std::string program, const RunOptions& settings, Options& options, par::Group& group, Trial& trial);
    ~TrainingRun();
    TrainingRun(const TrainingRun&) = delete;
    TrainingRun& operator=(const TrainingRun&) = delete;

    /// Runs `training` and returns its exit code. If a stop request ended loading, returns the code for that; a trial
    /// throws Stopped on to its pool. If `training` throws, report.html says that the run failed, and why.
    template <class Body>
    int supervise(const Body& training) {
        try {
            return training();
        } catch (const Stopped&) {
            if (!trial_.standalone()) throw;
            return stopped_while_loading(group_);
        } catch (const std::exception& error) {
            fail(error.what());
            throw;
        }
    }

    /// The name of the set that the network is tested on after each epoch.
    std::string test_set_name = "test";
    /// Measures the time of each phase of the epoch.
    PhaseClock phases;

    par::Group& group() const { return group_; }
    bool resumed() const { return checkpoint_ != nullptr; }

    /// Restores values, optimizer and position from the checkpoint, or only the values from --init, or changes nothing.
    /// `parameters` outlives this.
    void restore_parameters(Parameters& parameters, const OptimizerState& optimizer);

    /// The length of the training; a stop request may end it earlier.
    struct Length {
        int64_t steps = 0, batches = 0; // total number of steps; batches per epoch
        int64_t epochs() const { return std::max<int64_t>(1, steps / batches + (steps % batches != 0)); }
    };
    /// Collective. If any rank fails before this call, no folder is created. `summary` is a text for people: the
    /// machine, the data, the network.
    void begin(const Length& length, const std::vector<std::string>& classes, const std::string& summary);

    const Position& position() const { return position_; }
    /// Returns the number of epochs before the next step, with the fraction of the current one.
    double epochs() const { return double(position_.epoch - 1) + double(position_.batch) / double(length_.batches); }

    /// True until all steps are done or a rank got a stop request. The same on all ranks, like the next two functions.
    bool goes_on() const { return position_.step < length_.steps && !stopped_; }
    /// True while every rank has a further batch in this epoch; false after a rollback, which leaves the epoch.
    bool epoch_goes_on() const { return goes_on() && epoch_goes_on_; }
    /// True if all batches of the epoch are done. Then test the network.
    bool epoch_is_complete() const { return position_.batch == length_.batches; }
    /// True if a rank got a stop request.
    bool stopped() const { return stopped_; }

    /// Collective. Begins or resumes the epoch at position(). `has_data` is true if this rank has a batch.
    void begin_epoch(bool has_data);
    /// Decides about the step after position(), as --on-nan says. `non_finite_at` is the result of first_non_finite()
    /// for its gradients and its loss over all ranks. A rollback moves position() back.
    Verdict handle_non_finite(double loss, const Tensor& non_finite_at);
    /// Logs a step and advances position(), unless the step was rolled back. Saves a checkpoint if one is due.
    void end_step(const StepResult& result);
    /// Collective. Logs the score and advances position() to the next epoch.
    void end_epoch(const Score& test);
    /// Returns true if this rank has a stop request: a signal, a file "stop" in the folder, or from Trial::report().
    /// Ranks may differ.
    bool has_stop_request();

    /// Collective. Saves the model and a checkpoint. If a value is not finite, throws Error before it writes any file.
    /// Trials are compared by the accuracy of their last whole epoch, so a trial that is stopped later keeps the model
    /// of that epoch.
    void save() { save_model(), save_checkpoint(); }
    /// Sets a member of the run in report.html; see report.h. Call it after begin().
    void report(const std::string& name, Json value);
    /// Prints a line.
    void note(const std::string& line) {
        if (progress_) progress_->note(line);
    }
    /// Adds a line to the metrics and reports it to the trial.
    void log(const Json& line);
    /// See Trial::pulse().
    void pulse() { trial_.pulse(); }
    /// Collective. Ends the run and returns the exit code; see signals.h.
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
    bool untested_ = false;     // the network had steps since it was last tested
    bool stop_request_ = false; // from the trial or from a file in the folder
    Length length_;
    Metadata classes_;
    Clock::time_point epoch_begin_, last_step_; // the time of an epoch does not include testing and saving
    double images_at_begin_ = 0;                // of this epoch, when it was begun or resumed
};

} // namespace rg
