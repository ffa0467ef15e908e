// Writes the folder, metrics, report and progress of a run, and reads its stop requests. tools/monitor shows what is in
// the folder. RunLog knows steps and epochs, but no network and no images, so it serves loops of your own as well as
// the library's trainings. The trainings have rules of their own for epochs, so TrainingRun (training_run.h) logs lines
// by log(), and uses none of step(), end_epoch(), goes_on() and result(). Saver (saver.h) adds models and checkpoints.
//
//     RunOptions settings;
//     settings.declare(options);                    // --run-name, --resume, --progress and so on
//     ...
//     RunLog log(settings, options, group);         // with --resume: opens the run
//     return log.supervise([&] {
//         log.begin({.metrics = {{.name = "rmse", .unit = "pixels"}}, .steps = 500, .steps_per_epoch = 50});
//         while (log.goes_on()) {
//             log.step({{"rmse", compute_step(log.position.step + 1)}});
//             if (log.epoch_is_complete()) log.end_epoch({{"test_rmse", test()}});
//         }
//         return log.end();
//     });
//
// Every rank makes the same calls; only rank 0 writes files and prints.
#pragma once

#include "core/json.h"
#include "models/run/file_writer.h"
#include "models/run/progress.h"
#include "models/run/report.h"
#include "models/run/run_folder.h"
#include "models/run/signals.h"
#include "models/run/task.h"

#include <atomic>
#include <optional>

namespace rg {

/// Receives the lines of a run, and may stop it. Every rank has one. This base class serves a stand-alone program; a
/// sweep derives from it (sweep/trials.cpp).
class TrainingObserver {
public:
    virtual ~TrainingObserver() = default;
    /// True for a stand-alone program, which prints and handles signals.
    virtual bool standalone() const { return true; }
    /// Called on the group's first rank with each line that is added to metrics.jsonl. If it returns true, the run
    /// stops: a loop over RunLog::goes_on() before its next step, a TrainingRun after one more step or at the end of
    /// the epoch, whichever comes first.
    virtual bool on_metrics(const Json& /*line*/) { return false; }
    /// Called on the group's first rank when the run ends without an error. `stopped` is true if a stop request ended
    /// it early.
    virtual void end(bool /*stopped*/) {}
    /// Called regularly during long work that logs no metrics. A sweep then handles messages of its task pool.
    /// If it returns true, as a request of a user, the run stops as after on_metrics().
    virtual bool poll_stop() { return false; }
};

struct RunOptions {
    std::string runs = default_runs_folder(), name, init, init_skip;
    ProgressKind progress = ProgressKind::automatic;
    bool resume = false, write_report = true;
    int64_t keep = 2;
    void declare(Options& options);
};

/// The position of a run. It has no random state, since random numbers depend only on the seed, these counters, and
/// indices such as that of an image. When all steps of an epoch are done, `batch` is their number until the next epoch
/// begins.
struct RunPosition {
    int64_t epoch = 1, batch = 0;  // of the next step; epochs count from 1, the steps of an epoch from 0
    int64_t step = 0;              // number of finished steps, also skipped ones, since the start
    double samples = 0;            // sum over this epoch's applied steps, of all ranks
    std::vector<double> sums = {}; // over this epoch, of metric * samples; in TrainingRun: loss * images, Task::sums()
    double best = 0;               // best value of the metric that chooses the best model
    int64_t best_epoch = 0;        // epoch of the test with this value; 0 before the first test
};

/// Numbers with names, such as {{"loss", 0.25}, {"rmse", 3.5}}.
using NamedValues = std::vector<std::pair<std::string, double>>;

class RunLog {
public:
    /// Collective. In a stand-alone program, turns signals into stop requests. With --resume, opens the run's folder
    /// and locks it. All arguments must outlive this. Throws Error if the options differ between ranks, if there is no
    /// such run, or if another process trains it.
    RunLog(const RunOptions& settings, Options& options, par::Group& group,
           TrainingObserver& observer = standalone_program_);
    RunLog(const RunLog&) = delete;
    RunLog& operator=(const RunLog&) = delete;

    /// Runs `work` and returns its exit code. `work` may throw Stopped on all ranks before begin(), if a stop request
    /// has ended the loading of data: then returns the exit code for a stop, or in a trial of a sweep throws Stopped.
    /// Passes on other exceptions; if one came on rank 0 after begin(), report.html then says that the run failed, and
    /// why.
    template <class Work>
    int supervise(const Work& work) {
        try {
            return work();
        } catch (const Stopped&) {
            if (!observer.standalone()) throw;
            return stopped_while_loading(group);
        } catch (const std::exception& error) {
            fail(error.what());
            throw;
        }
    }

    /// Describes a run for its files and its output. The first metric is the main one. The lines of steps and epochs
    /// may have other values, too.
    struct Info {
        std::vector<MetricInfo> metrics = {};
        int64_t steps = 0;               // of the whole run; 0: unknown
        int64_t steps_per_epoch = 0;     // 0: the run has no epochs
        std::string summary = "";        // for people: the machine, the data, the network
        const char* samples = "samples"; // short name of the samples, for rates
    };
    /// Collective. Creates the folder of a new run, or removes the lines after the position from metrics.jsonl of a
    /// resumed run. Starts the output. If any rank fails before this call, no folder is created.
    void begin(const Info& info);

    /// Collective. True until all steps are done, or a rank has a stop request.
    bool goes_on();
    /// Returns the number of epochs, of which the last may be incomplete; 0: the run has none. Counts those to come
    /// from the position, since earlier ones may have had another number of steps (--new-data).
    int64_t epochs() const;
    /// True if all steps of the epoch are done. Then call end_epoch().
    bool epoch_is_complete() const { return position.batch > 0 && position.batch == info_.steps_per_epoch; }
    /// Logs a step, and advances `position`. `samples` is the weight of these values in the means of the epoch, such as
    /// the number of images in the mini-batch. The values must be means over all ranks. Pass Optimizer::non_finite_at()
    /// if there is an optimizer: its update changes nothing if the loss or a gradient is not finite, and step() then
    /// throws Error. Also throws if a metric is missing or not finite, if the run was resumed with another number of
    /// metrics, or if an earlier write of a file has failed.
    void step(const NamedValues& values, double samples = 1, const Tensor& non_finite_at = {});
    /// Logs an epoch: the means of all metrics over its samples as "train_" + name, and results such as {"test_rmse",
    /// 3.2}. Advances `position` to the next epoch.
    void end_epoch(const NamedValues& results = {});
    /// Logs results of the whole run. Call it after the last step.
    void result(const NamedValues& values);
    /// Collective. Blocks until all files are written. Ends the run and returns the exit code; see signals.h.
    [[nodiscard]] int end() { return end(stopped_ && !is_done(), {}, ""); }
    /// The same for a caller that decides whether the run was stopped early. Prints `lines`, and then a command: for a
    /// stopped run, that which resumes it, else `next_command` for its folder, unless that is empty.
    [[nodiscard]] int end(bool stopped, const std::vector<std::string>& lines, const std::string& next_command);

    /// Returns true if this rank has a stop request: a signal (outside of sweeps), a file "stop" in the folder, which
    /// rank 0 looks for, or a true from the observer. The result may differ between ranks.
    bool has_stop_request();
    /// See TrainingObserver::poll_stop().
    void poll_stop() {
        if (observer.poll_stop()) stop_request_ = true;
    }
    /// Prints a line on rank 0, in begin() if that was not called yet. Does nothing with --progress none, or in a trial
    /// of a sweep.
    void note(const std::string& line, Colour colour = Colour::none);
    /// Prints a text in yellow, like note(). Escapes unprintable bytes, since the text may come from files.
    void warn(const std::string& text);
    /// Shows the position and these texts of metrics as progress, which must exist (progress()). The last step had so
    /// many `samples`.
    void show_step(std::vector<std::string> metrics, double samples);
    /// Adds a line to metrics.jsonl and the report, and passes it to the observer. Does nothing on a rank without a
    /// folder.
    void log(const Json& line);
    /// Sets a member of the run in report.html, such as "fields"; see report.h. Call it after begin(). Does nothing
    /// with --no-report.
    void set_in_report(const std::string& name, Json value);
    /// Starts writing report.html on another thread. Does nothing with --no-report, or with the state "running" until
    /// 20 times the duration of the last write have passed since its end.
    void write_report(const std::string& state);

    /// Returns the argument of begin(), with fewer steps after end_early().
    const Info& info() const { return info_; }
    /// Ends the run with the current step: sets the number of its steps to that of the finished steps.
    void end_early() { info_.steps = std::min(info_.steps, position.step); }
    /// Returns the folder, on rank 0: after begin(), and with --resume from the start. Null on other ranks.
    RunFolder* folder() { return folder_ ? &*folder_ : nullptr; }
    /// Returns the output for people, or null if this rank or this run has none.
    Progress* progress() { return progress_ ? &*progress_ : nullptr; }

    const RunOptions& settings;
    Options& options;
    par::Group& group;
    TrainingObserver& observer;
    RunPosition position; // of the checkpoint, after Saver::restore() in a resumed run

private:
    static inline TrainingObserver standalone_program_;
    bool is_done() const { return info_.steps > 0 && position.step >= info_.steps; }
    void fail(const std::string& why);

    Info info_;
    std::optional<RunFolder> folder_;
    std::optional<Report> report_;
    std::optional<Progress> progress_;
    std::vector<std::pair<std::string, Colour>> early_notes_; // lines of note() before begin()
    bool begun_ = false, stopped_ = false;
    bool stop_request_ = false;                     // from the observer or a file
    double epoch_begin_ = 0, samples_at_begin_ = 0; // when and with how many samples this process began the epoch
    std::atomic<double> next_report_{0};            // earliest time of the next report while the run goes on

public:
    /// Writes reports, models and checkpoints. It uses other members, so it is destroyed first.
    FileWriter writer;
};

} // namespace rg
