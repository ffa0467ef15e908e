// The run of a training program, from the side of its loop: where it begins, what it leaves on the disk and shows.
//
//     TrainingRun run("train_x", settings.run, options, group, {"seed"}); // finds the run to resume, and its options
//     return run.attempt([&] {
//         Position at = run.restore(parameters, optimizer);               // where the training stands
//         run.begin(...);                                                 // when every rank has all that it needs
//         ... begin_epoch(at), judge(at, loss, found) and step(at, ...) after each update, end_epoch(at, ...), save_...
//         return run.end(at, stopped);
//     });
//
// Every rank makes the same calls; rank 0 alone has a folder and a screen. Nothing is computed here, and no parameter
// changes but by restore() and judge(): how a network is trained is written in the programs.
#pragma once

#include "models/run/data_parallel.h"
#include "models/run/nan_guard.h"
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
    std::string runs = "runs", name, init;
    bool resume = false, tensorboard = false;
    int64_t checkpoint_every = 0, keep = 2;
    OnNan on_nan = OnNan::stop;
    void declare(Options& options);
};

class TrainingRun {
public:
    /// From here on a signal is a wish to stop. With --resume: takes the run, loads its last checkpoint, and gives
    /// `options` what the command line does not. `fixed`: see restore_options(). All arguments outlive this.
    TrainingRun(std::string program, const RunOptions& settings, Options& options, par::Group& group, Trial& trial,
                std::initializer_list<std::string_view> fixed);
    ~TrainingRun();
    TrainingRun(const TrainingRun&) = delete;
    TrainingRun& operator=(const TrainingRun&) = delete;

    /// Runs `training`, all that follows, and returns its exit code. If loading was stopped, returns the code for that;
    /// a trial is left to its pool. If `training` throws, report.html says that the run has failed, and why.
    template <class Training>
    int attempt(const Training& training) {
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

    bool resumed() const { return checkpoint_ != nullptr; }

    /// Values from the checkpoint or from --init, else as they are. `parameters` outlives this.
    Position restore(Parameters& parameters, const OptimizerState& optimizer);

    /// How long the training is; a stop may end it before.
    struct Length {
        int64_t steps = 0, batches = 0; // in all; in an epoch
        int64_t epochs() const { return std::max<int64_t>(1, steps / batches + (steps % batches != 0)); }
    };
    /// Collective: a rank that has failed before has ended the job, and left no folder. `what` is for people: the
    /// machine, the data, the network.
    void begin(const Position& at, const Length& length, const std::vector<std::string>& classes,
               const std::string& what);

    void begin_epoch(const Position& at);
    /// After the update of the step after `at`: whether it was one, by what first_non_finite() has found in its
    /// gradients and its loss over all ranks, and what follows if not, by --on-nan. After a rollback the epoch begins
    /// anew at `at`.
    Verdict judge(Position& at, double loss, const Tensor& found);
    /// A step over all ranks: of how many images, with which mean loss, and how many of them right. Moves `at` on.
    struct Step {
        int64_t images;
        double loss, correct, lr;
    };
    void step(Position& at, const Step& step);
    /// Moves `at` to the next epoch.
    void end_epoch(Position& at, const Score& test, std::vector<EpochStatus::Extra> extras = {});
    /// Whether this rank knows of a wish to end: a signal, a stop request in the folder, or an answer to what the trial
    /// was told. Ranks may differ.
    bool asked_to_stop();
    /// Whether a checkpoint is due between the ends of epochs.
    bool due(const Position& at) const;

    /// Error, before anything is written, if a value is not finite. Trials are compared by the accuracy of their last
    /// epoch: the model of one that is stopped on the way to the next stays that of the epoch.
    void save_model(const Parameters& parameters);
    void save_checkpoint(const Position& at, const Parameters& parameters, const OptimizerState& optimizer);
    /// What the page of the run (report.html) shows beside the metrics; see report.h. After begin().
    void report(const std::string& name, Json value);
    /// A line for people; one for the metrics, and the trial.
    void note(const std::string& line);
    void log(const Json& line);
    /// Collective; gives the exit code: see signals.h.
    [[nodiscard]] int end(const Position& at, bool stopped);

private:
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
    bool skipped_ = false;  // the step that is judged last
    bool untested_ = false; // the network has had steps since it was tested last
    bool asked_ = false;    // to stop, by the trial or by a file in the folder
    Length length_;
    Metadata classes_;
    Clock::time_point epoch_begin_, last_step_; // testing and saving are no part of the time of an epoch
    double images_before_ = 0;                  // of the epoch, when it was begun or resumed
};

} // namespace rg
