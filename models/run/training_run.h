// The run of a training program: its position (epoch and step), stop requests, files and output.
//
//     TrainingRun run(run_options, options, group, observer); // opens the run to resume
//     return run.supervise([&] {
//         run.check_data(...);                                 // --resume needs the same images
//         run.restore_parameters(parameters, optimizer, task); // also restores the position
//         run.begin(length, model, summary);                   // creates the folder
//         while (run.goes_on()) {
//             run.begin_epoch(has_data);
//             while (run.epoch_goes_on()) {
//                 StepResult result = compute_step();
//                 result.skipped = run.skips_non_finite(...); // before end_step() logs the step
//                 run.end_step(result);
//                 if (run.test_is_due()) run.keep_if_best(score), run.end_test_in_epoch(score);
//             }
//             if (run.epoch_is_complete()) run.keep_if_best(score), run.end_epoch(score);
//             run.save_model(), run.save_checkpoint();
//         }
//         return run.end();
//     });
//
// Every rank makes the same calls; only rank 0 writes files and prints. It writes models, checkpoints and reports on
// another thread, while the training goes on; if that fails, the next step throws. training.cpp computes the steps.
// TrainingRun changes parameters only in restore_parameters(), in skips_non_finite(), and before each save on idle
// ranks without a GPU, which get those of a rank with one.
#pragma once

#include "ringgrad/models/run/collective.h"
#include "ringgrad/models/run/file_writer.h"
#include "ringgrad/models/run/nan_guard.h"
#include "ringgrad/models/run/phase_clock.h"
#include "ringgrad/models/run/progress.h"
#include "ringgrad/models/run/report.h"
#include "ringgrad/models/run/run_folder.h"
#include "ringgrad/models/run/signals.h"
#include "ringgrad/models/run/task.h"

#include <atomic>
#include <optional>

namespace rg {

struct LoadedCheckpoint;

/// Receives the metrics of a training, and may stop it. Every rank has one. This base class serves a training that is a
/// program by itself; a sweep derives from it (sweep/trials.cpp).
class TrainingObserver {
public:
    virtual ~TrainingObserver() = default;
    /// True if the training is a program by itself. Then it prints and handles signals.
    virtual bool standalone() const { return true; }
    /// Called on the group's first rank with each line that is added to metrics.jsonl. If it returns true, the training
    /// stops after one more step, or at the end of the epoch.
    virtual bool on_metrics(const Json& /*line*/) { return false; }
    /// Called on the group's first rank when TrainingRun ends without an error. `stopped`: early, by a stop request.
    virtual void end(bool /*stopped*/) {}
    /// Called regularly during long work that logs no metrics. A sweep then handles messages of its task pool.
    /// If it returns true, as a request of a user, the training stops as after on_metrics().
    virtual bool pulse() { return false; }
};

struct RunOptions {
    std::string runs = default_runs_folder(), name, init, init_skip, patience_on;
    ProgressKind progress = ProgressKind::automatic;
    bool resume = false, new_data = false, write_report = true;
    int64_t checkpoint_every = 0, keep = 2, patience = 0, validate_every = 0;
    OnNan on_nan = OnNan::stop;
    void declare(Options& options);
};

/// The result of a training step, over all ranks.
struct StepResult {
    int64_t images;           // in the mini-batch
    double loss, lr;          // mean loss, learning rate
    std::vector<double> sums; // of the metrics; see Task::add()
    bool stop = false;        // some rank has a stop request
    bool last = false;        // some rank has no further batch in this epoch
    bool skipped = false;     // by --on-nan
};

class TrainingRun {
public:
    /// Collective. If the training is a program by itself, turns signals into stop requests. With --resume, locks the
    /// run's folder, loads its newest valid checkpoint, and restores the options that the command line does not give.
    /// All arguments must outlive this. Throws Error if the options differ between ranks, contradict each other, or do
    /// not fit the checkpoint.
    TrainingRun(const RunOptions& settings, Options& options, par::Group& group, TrainingObserver& observer);
    ~TrainingRun();
    TrainingRun(const TrainingRun&) = delete;
    TrainingRun& operator=(const TrainingRun&) = delete;

    /// Runs `training` and returns its exit code. If a stop request ends the loading of data, returns the exit code for
    /// a stop; in a trial of a sweep, throws Stopped instead. If `training` throws another exception, throws it on. If
    /// that is after begin(), report.html says that the run failed, and why.
    template <class Body>
    int supervise(const Body& training) {
        try {
            return training();
        } catch (const Stopped&) {
            if (!observer_.standalone()) throw;
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
    /// Returns the checkpoint that the run resumes from, else the file of --init, else null. The latter is in memory
    /// until restore_parameters() returns.
    const TensorFile* initial();

    /// Collective. Throws par::RanksDiffer unless all ranks have the same images, labels and targets. With --resume,
    /// throws Error unless they are those of the checkpoint. With --new-data, they may differ if the classes are the
    /// same and the checkpoint is from the end of an epoch. With --init without --init-skip, throws Error if that file
    /// has as many classes, but other ones. begin() prints the number of images per class. Models and checkpoints store
    /// `description`, that of DataOptions::describe().
    void check_data(const data::TrainTest& data, const Json& description);

    /// Collective. With --resume, restores the network's tensors, the state of the optimizer and the position from the
    /// checkpoint. Otherwise, with --init, loads only the network's tensors, except those of --init-skip. Each rank
    /// reads files of its own, so throws par::RanksDiffer if the ranks then differ. `parameters` and `task` must
    /// outlive this. Throws Error if the task has no metric of the name in --patience-on.
    void restore_parameters(Parameters& parameters, const OptimizerState& optimizer, const Task& task);

    /// The length of the training; a stop request or --patience may end it earlier.
    struct Length {
        int64_t steps = 0, batches = 0; // total number of steps; batches per epoch
        int64_t epochs() const { return std::max<int64_t>(1, steps / batches + (steps % batches != 0)); }
    };
    /// Collective. Creates the folder of a new run and starts the output. If any rank fails before this call, no folder
    /// is created. The files of the model store `model`; see describe_model(). `summary` is a text for people: the
    /// machine, the data, the network. `warnings` are those of the data.
    void begin(const Length& length, const Metadata& model, const std::string& summary,
               const std::vector<std::string>& warnings = {});

    const Position& position() const { return position_; }
    const Length& length() const { return length_; }
    /// Returns the number of finished epochs, plus the finished fraction of the current epoch.
    double epochs() const { return double(position_.epoch - 1) + double(position_.batch) / double(length_.batches); }

    /// True until all steps and their tests are done, a rank has a stop request, or --patience ends the training. The
    /// ranks check for stop requests in each step, in each mini-batch of a test, and when an epoch begins and ends.
    /// Like the next four functions, returns the same on all ranks.
    bool goes_on() const { return work_is_left() && !stopped_; }
    /// True while goes_on() is true and every rank has a further batch in this epoch.
    bool epoch_goes_on() const { return goes_on() && epoch_goes_on_; }
    /// True if all batches of the epoch are done. Then test the network.
    bool epoch_is_complete() const { return position_.batch == length_.batches; }
    /// True if a stop request has ended the training before its last step or test.
    bool stopped() const { return stopped_ && work_is_left(); }
    /// True if --validate-every asks for a test before the next step. A run that resumes here repeats the test.
    bool test_is_due() const;
    /// Collective. Throws Stopped on all ranks if one has a stop request. Call it before each mini-batch of a test.
    void check_stop();

    /// Collective. Begins or continues the epoch at position(). `has_data` is true if this rank has a batch.
    void begin_epoch(bool has_data);
    /// Applies --on-nan to the step after position(). Returns true if the step is skipped. `non_finite_at` is the
    /// result of first_non_finite() for the gradients and the loss of this step, summed over all ranks.
    bool skips_non_finite(double loss, const Tensor& non_finite_at);
    /// Collective. Logs a step and advances position(). Saves a checkpoint if one is due.
    void end_step(const StepResult& result);
    /// Collective. Saves the model as model-best.safetensors if it is better than in every test before, by the metric
    /// of --patience-on. May throw like save_model().
    void keep_if_best(const Score& test);
    /// Collective. Returns model-best.safetensors on all ranks, if this training shall test it in the end: if it is a
    /// program by itself, has tested a model and was not stopped.
    std::optional<TensorFile> model_to_test();
    /// Logs the score of the test that was due within an epoch. The time since the last lap of `phases` is that of the
    /// test, and does not count as training time of the epoch.
    void end_test_in_epoch(const Score& score);
    /// Collective. Logs the score of that model on the test set.
    void end_test(const Score& score);
    /// Logs the score of the last model on the set of test_set_name, with six views of each image.
    void end_test_with_views(const Score& score);
    /// Collective. Logs the score and advances position() to the next epoch. Ends the training if the last --patience
    /// epochs have not improved the metric of --patience-on.
    void end_epoch(const Score& test);
    /// Returns true if this rank has a stop request: a signal (outside of sweeps), a file "stop" in the folder, or a
    /// true from TrainingObserver::on_metrics(). The result may differ between ranks.
    bool has_stop_request();

    /// Collective. Saves the model. Before it writes any file, throws par::RanksDiffer if the ranks differ, and Error
    /// if a value is not finite. A sweep compares its trials by a metric of their last complete epoch. So if a
    /// trial is stopped within a later epoch, its saved model remains that of the last complete one.
    void save_model();
    /// Collective. Saves a checkpoint, or throws Error as save_model() does.
    void save_checkpoint();
    /// Sets a member of the run in report.html; see report.h. Call it after begin(). Does nothing with --no-report.
    void set_in_report(const std::string& name, Json value);
    /// Prints a line on rank 0. Does nothing before begin() has opened the output, with --progress none, or in a trial
    /// of a sweep.
    void note(const std::string& line, Colour colour = Colour::none) {
        if (progress_) progress_->note(line, colour);
    }
    /// On rank 0 after begin(), adds a line to metrics.jsonl and the report, and passes it to the observer.
    void log(const Json& line);
    /// See TrainingObserver::pulse().
    void pulse() {
        if (observer_.pulse()) stop_request_ = true;
    }
    /// Collective. Blocks until all files are written. Ends the run and returns the exit code; see signals.h.
    [[nodiscard]] int end();

private:
    void verify_state(const std::string& hint) const;
    void check_before_save() const;
    void copy_to_cpu_ranks() const;
    void write_model(std::string (RunFolder::*path)() const);
    /// Writes report.html. While the state is "running", omits this if the last one was written a short time ago.
    void write_report(const std::string& state);
    /// Collective. Blocks until the last checkpoint and most other files are written, so that a slow disk does not fill
    /// the memory with copies.
    void make_room();
    void apply_patience();
    bool work_is_left() const {
        return position_.step < length_.steps || epoch_is_complete() || test_is_due() || test_stopped_;
    }
    void fail(const std::string& why);
    void print_end();
    /// Returns the metric of --patience-on, and its value in a score.
    MetricName best_by() const;
    double value_of(const Score& score) const;
    /// Returns a copy of `line` with the values of a score: `prefix` + "loss", `prefix` + "accuracy" and so on.
    Json with_score(Json line, const std::string& prefix, double loss, std::span<const double> metrics) const;
    std::vector<std::string> texts_of(std::span<const double> metrics) const;

    const std::string program_;
    const RunOptions& settings_;
    Options& options_;
    par::Group& group_;
    TrainingObserver& observer_;
    std::unique_ptr<LoadedCheckpoint> checkpoint_;
    std::optional<TensorFile> init_; // the file of --init
    std::optional<RunFolder> folder_;
    std::optional<Report> report_;
    std::optional<Progress> progress_;
    std::optional<NanGuard> guard_;
    int first_gpu_rank_ = -1; // lowest rank with a GPU, if other ranks have none; else -1
    Parameters* parameters_ = nullptr;
    const Task* task_ = nullptr;
    OptimizerState optimizer_;
    Position position_;
    bool stopped_ = false, epoch_goes_on_ = false;
    bool tested_ = false;       // true if the test that was due at position() is done
    bool test_stopped_ = false; // true if a stop request has ended a test
    bool untested_ = false;     // true if steps have followed the last complete epoch; false in epoch 1
    bool stop_request_ = false; // from the observer or from a file in the folder
    Length length_;
    Metadata model_;                         // of the files of the model
    Json data_;                              // the description of the data
    std::string held_out_;                   // names of the held-out test images, one per line
    std::string skipped_;                    // files that --skip-other-images has left out, one per line
    std::string class_counts_;               // images per class, for people
    double epoch_begin_ = 0, last_step_ = 0; // their difference is the epoch's training time
    std::optional<double> last_value_;       // of best_by(), after the last complete epoch in this process
    double images_at_begin_ = 0;             // number of this epoch's images that were done at begin_epoch()
    std::atomic<double> next_report_{0};     // earliest time of the next report while the run goes on
    // These two write models, checkpoints and reports. The writer uses other members, so it is destroyed first.
    std::shared_future<void> checkpoint_written_;
    FileWriter writer_;
};

} // namespace rg
