// The run of a training program on images: its log and its files, and the rules of its epochs, tests and early end.
//
//     TrainingRun run(run_options, options, group, observer); // with --resume: opens the run
//     return run.log.supervise([&] {
//         run.check_data(...);                                 // --resume needs the same images
//         run.restore(parameters, optimizer, task);            // also restores the position
//         run.begin(info, model);                              // creates the folder
//         while (run.goes_on()) {
//             run.begin_epoch(has_data);
//             while (run.epoch_goes_on())
//                 if (run.test_is_due())
//                     run.keep_if_best(score), run.log_test_in_epoch(score);
//                 else
//                     run.end_step(compute_step());            // which calls run.handle_non_finite()
//             if (run.epoch_is_complete()) run.keep_if_best(score), run.end_epoch(score);
//             run.save_model(), run.saver.save_checkpoint();
//         }
//         return run.end();
//     });
//
// Every rank makes the same calls. training.cpp computes the steps. TrainingRun changes parameters in restore() and
// handle_non_finite(), and before each save on the idle ranks, which then get those of a rank that computes.
#pragma once

#include "models/run/nan_guard.h"
#include "models/run/phase_clock.h"
#include "models/run/saver.h"

namespace rg {

struct TrainingRunOptions : RunOptions {
    std::string patience_on;
    bool new_data = false;
    int64_t checkpoint_every = 0, patience = 0, validate_every = 0;
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
    /// Collective. See RunLog and Saver. All arguments must outlive this.
    TrainingRun(const TrainingRunOptions& settings, Options& options, par::Group& group, TrainingObserver& observer);

    RunLog log;
    Saver saver;
    /// Measures the time of each phase of the epoch.
    PhaseClock phases;
    /// The name of the set that the network is tested on after each epoch.
    std::string test_set_name = "test";

    /// Collective. Throws par::RanksDiffer unless all ranks have the same images, labels and targets. With --resume,
    /// throws Error unless they are those of the checkpoint. With --new-data, they may differ if the classes are the
    /// same and the checkpoint is from the end of an epoch. With --init without --init-skip, throws Error if that file
    /// has the same number of classes with other names. begin() prints the number of images per class. Models and
    /// checkpoints store `description`, that of DataOptions::describe().
    void check_data(const data::TrainTest& data, const Json& description);
    /// Collective. See Saver::restore(). `parameters` and `task` must outlive this. Throws Error if the task has no
    /// metric of the name in --patience-on.
    void restore(Parameters& parameters, const OptimizerState& optimizer, const Task& task);
    /// Collective. See RunLog::begin(). A stop request or --patience may end the training before the steps of
    /// `info`. The metrics are those of the task. `model` is stored in the files of the model; see
    /// describe_model().
    void begin(RunLog::Info info, const Metadata& model);

    /// Returns the number of finished epochs, plus the finished fraction of the current epoch.
    double epochs() const {
        return double(log.position.epoch - 1) + double(log.position.batch) / double(log.info().steps_per_epoch);
    }

    /// True until all steps and their tests are done, a rank has a stop request, or --patience ends the training. The
    /// ranks check for stop requests in each step, in each mini-batch of a test, and when an epoch begins and ends.
    /// Like the next four functions, returns the same on all ranks.
    bool goes_on() const { return work_is_left() && !stopped_; }
    /// True while goes_on() is true and every rank has a further batch in this epoch.
    bool epoch_goes_on() const { return goes_on() && epoch_goes_on_; }
    /// True if all batches of the epoch are done. Then test the network.
    bool epoch_is_complete() const { return log.position.batch == log.info().steps_per_epoch; }
    /// True if a stop request has ended the training before its last step or test.
    bool stopped() const { return stopped_ && work_is_left(); }
    /// True if --validate-every asks for a test before the next step. A run that resumes here repeats the test.
    bool test_is_due() const;
    /// Collective. Throws Stopped on all ranks if one has a stop request. Call it before each mini-batch of a test.
    void check_stop();

    /// Collective. Begins or continues the epoch of the position. `has_data` is true if this rank has a batch.
    void begin_epoch(bool has_data);
    /// Collective. Applies --on-nan to the step after the position. Returns true if it is skipped. `non_finite_at` is
    /// the result of first_non_finite() for the gradients and the loss of this step, summed over all ranks. Messages
    /// name the tensor that `rank` finds, since idle ranks have no gradients.
    bool handle_non_finite(double loss, const Tensor& non_finite_at, int rank = 0);
    /// Collective. Logs a step and advances the position. Saves a checkpoint if one is due.
    void end_step(const StepResult& result);
    /// Collective. Saves the model as model-best.safetensors if it is better than in every test before, by the metric
    /// of --patience-on. May throw like Saver::save_model().
    void keep_if_best(const Score& test);
    /// True if the run has a best model, but --new-data has changed the test or validation set.
    bool best_is_of_others() const { return best_is_of_others_ && log.position.best_epoch > 0; }
    /// Collective. Compares the models of later epochs with `test`, the score of the best model on the new images.
    /// Writes its file again, with the description of these images.
    void replace_best(const Score& test);
    /// Collective. Returns model-best.safetensors on all ranks, or none if there is nothing to test: in a trial, after
    /// a stop, and before the first test.
    std::optional<TensorFile> model_to_test();
    /// Logs the score of the test that was due within an epoch. The time since the last lap of `phases` is that of the
    /// test, and does not count as training time of the epoch.
    void log_test_in_epoch(const Score& score);
    /// Logs the score of a test after the last epoch: `name` is "best_model" or "six_views" in the line of metrics.
    void log_test(const std::string& name, const std::string& set, const Score& score);
    /// Writes each table as NAME.csv into the run's folder, on rank 0 after begin().
    void write_tables(const std::vector<Detail::CsvTable>& tables);
    /// Collective. Logs the score and advances the position to the next epoch. Ends the training if the last --patience
    /// epochs have not improved the metric of --patience-on.
    void end_epoch(const Score& test);

    /// Collective. Saves the model. A sweep compares its trials by a metric of their last complete epoch. So if a trial
    /// is stopped within a later epoch, its saved model remains that of the last complete one.
    void save_model();
    /// Collective. Ends the run and returns the exit code; see RunLog::end().
    [[nodiscard]] int end();

private:
    void apply_patience();
    bool work_is_left() const {
        return log.position.step < log.info().steps || epoch_is_complete() || test_is_due() || test_stopped_;
    }
    /// Returns the metric of --patience-on, by default the task's first. Throws Error if the task has none of the name.
    MetricInfo best_metric() const;

    const TrainingRunOptions& settings_;
    std::optional<NanGuard> guard_;
    const Task* task_ = nullptr;
    bool stopped_ = false, epoch_goes_on_ = false;
    bool best_is_of_others_ = false;         // true if --new-data has changed images for tests
    bool tested_ = false;                    // true if the test that was due at the position is done
    bool test_stopped_ = false;              // true if a stop request has ended a test
    bool untested_ = false;                  // true if steps have followed the last complete epoch; false in epoch 1
    std::string held_out_;                   // names of the held-out test images, one per line
    std::string skipped_;                    // files that --skip-other-images has left out, one per line
    double epoch_begin_ = 0, last_step_ = 0; // their difference is the epoch's training time
    std::optional<double> last_value_;       // of best_metric(), after the last complete epoch in this process
    double images_at_begin_ = 0;             // number of this epoch's images that were done at begin_epoch()
};

} // namespace rg
