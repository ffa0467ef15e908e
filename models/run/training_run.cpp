// See training_run.h.
#include "models/run/training_run.h"

#include "core/checkpoint.h"
#include "core/text.h"
#include "models/nets/state_dict.h"

namespace rg {

void RunOptions::declare(Options& o) {
    o.group(cat("Run (exit status: 0 done or stopped by Ctrl-C, ", kExitInterrupted,
                " interrupted by SIGTERM, SIGUSR1 or SIGHUP: the same command goes on, with --resume if there is a "
                "checkpoint; 1 error)"));
    o.add("runs", &runs, "folder of all runs").metavar("DIR");
    o.add("run-name", &name, "name of this run's folder; none: program and time").metavar("NAME");
    o.add("init", &init, "start from the values in this file (safetensors)").metavar("FILE");
    o.add("resume", &resume, "go on from the last checkpoint of --run-name, or of the newest run");
    o.add("checkpoint-every", &checkpoint_every, "also checkpoint every so many steps; 0: at the end of epochs")
        .at_least(0);
    o.add("tensorboard", &tensorboard, "also write the metrics for TensorBoard, into the run's folder");
    o.add("keep", &keep, "checkpoints to keep").range(1, 1e6);
    o.add("on-nan", &on_nan, {{"stop", OnNan::stop}, {"skip", OnNan::skip}, {"rollback", OnNan::rollback}},
          "a loss or gradient that is not finite: end with an error, leave the step out, or go back to the last "
          "checkpoint; nothing bad is ever saved");
}

TrainingRun::TrainingRun(std::string program, const RunOptions& settings, Options& options, par::Group& group,
                         Trial& trial, std::initializer_list<std::string_view> fixed)
    : program_(std::move(program)), settings_(settings), options_(options), group_(group), trial_(trial) {
    if (trial.alone()) install_stop_signals(); // loading may take long
    verify_same_options(group, options);
    if (!settings.resume) return;
    RG_CHECK(!options.was_given("init"), program_,
             ": --init starts a new run and --resume goes on with an old one; give one of the two");
    if (group.rank() == 0) {
        folder_.emplace(RunFolder::open(settings.runs, program_, settings.name));
        folder_->lock();
    }
    // Which run it is, and that nobody else writes to it any more: so all ranks load the same.
    const std::string from = group.allgather(folder_ ? folder_->checkpoint_path() : "", "run to resume")[0];
    checkpoint_ = std::make_unique<LoadedCheckpoint>(load_latest_checkpoint(from));
    restore_options(checkpoint_->state, options, fixed);
}

TrainingRun::~TrainingRun() = default;

void TrainingRun::restore_parameters(Parameters& parameters, const OptimizerState& optimizer) {
    parameters_ = &parameters, optimizer_ = optimizer;
    if (checkpoint_)
        position_ = restore_training(program_, checkpoint_->state, parameters, optimizer),
        untested_ = position_.epoch > 1 && position_.batch;
    else if (!settings_.init.empty())
        load_state_dict(parameters, load_tensors(settings_.init));
    guard_.emplace(settings_.on_nan, parameters, optimizer, position_);
}

void TrainingRun::begin(const Length& length, const std::vector<std::string>& classes, const std::string& what) {
    length_ = length;
    classes_ = {{"classes", Json(Json::Array(classes.begin(), classes.end())).dump()}};
    group_.barrier("start");
    if (group_.rank() != 0) return;
    // The folder that a trial lies in was there when the trial began: if it is gone, nobody wants it back.
    if (!folder_) folder_.emplace(RunFolder::create(settings_.runs, program_, settings_.name, trial_.alone()));
    folder_->lock();
    folder_->check_in_place(); // a run that goes on was locked before the data were loaded
    folder_->cut_metrics(position_.step, position_.epoch - 1);
    const Json options = options_.to_json();
    const Json* seed = options.find("seed");
    const Json config = Json::object()
                            .set("program", program_)
                            .set("version", RG_VERSION)
                            .set("ranks", group_.size())
                            .set("seed", seed ? *seed : Json())
                            .set("options", options);
    folder_->write_config(config);
    report_.emplace(*folder_, config);
    if (settings_.tensorboard) events_.emplace(folder_->path(), position_.step);
    report("summary", what);
    report("tested", tested);
    report("epochs", length.epochs());
    report("steps_per_epoch", length.batches);
    if (trial_.alone()) progress_.emplace();
    if (checkpoint_)
        for (const std::string& warning : checkpoint_->warnings) note(printable(warning));
    note(printable(cat(what, "; ", folder_->path())));
    if (checkpoint_) note(printable(cat("resumed from ", checkpoint_->path, " at step ", position_.step)));
}

void TrainingRun::begin_epoch(bool has_data) {
    if (report_) report_->write("running");
    epoch_begin_ = Clock::now();
    images_before_ = position_.images;
    stopped_ = !group_.all(!asked_to_stop(), "go on");
    epoch_goes_on_ = group_.all(has_data, "has data");
    phases.start();
}

Verdict TrainingRun::handle_non_finite(double loss, const Tensor& non_finite_at) {
    std::string warning;
    const Verdict verdict = guard_->handle_non_finite(position_, loss, non_finite_at, warning);
    if (!warning.empty()) note(printable(warning));
    if (verdict == Verdict::rolled_back && folder_) {
        folder_->cut_metrics(position_.step, position_.epoch - 1);
        report_->reread(*folder_);
        if (events_) events_.emplace(folder_->path(), position_.step);
    }
    return verdict;
}

void TrainingRun::step(const StepResult& result) {
    stopped_ = result.stop;
    epoch_goes_on_ = !result.last && result.verdict != Verdict::rolled_back;
    if (result.verdict == Verdict::rolled_back) return;
    const bool skipped = result.verdict == Verdict::skip;
    const double images = double(result.images);
    Position& p = position_;
    ++p.step, ++p.batch;
    untested_ = p.epoch > 1;
    if (!skipped) {
        p.loss_sum += result.loss * images;
        p.correct += result.correct;
        p.images += images;
    }
    last_step_ = Clock::now();
    if (folder_) {
        Json line = Json::object()
                        .set("step", p.step)
                        .set("epoch", p.epoch)
                        .set("loss", result.loss)
                        .set("accuracy", result.correct / images)
                        .set("lr", result.lr);
        if (skipped) line.set("skipped", true);
        log(line);
        if (progress_)
            progress_->step({p.epoch, length_.epochs(), p.step, length_.steps, p.loss_sum / p.images,
                             p.correct / p.images, result.images});
    }
    const int64_t every = settings_.checkpoint_every;
    if (every && p.step % every == 0 && p.batch < length_.batches) save_checkpoint();
    phases.lap(PhaseClock::other);
}

void TrainingRun::end_epoch(const Score& test, std::vector<EpochStatus::Extra> extras) {
    par::verify_identical(group_, parameters_->values().to_host().span<float>(), "parameters");
    phases.lap(PhaseClock::evaluate);
    report("ranks", phases.gather(group_));
    const double seconds = std::chrono::duration<double>(last_step_ - epoch_begin_).count();
    const EpochStatus status{position_.epoch,
                             length_.epochs(),
                             position_.loss_sum / position_.images,
                             position_.correct / position_.images,
                             test.loss,
                             test.accuracy,
                             (position_.images - images_before_) / seconds,
                             seconds,
                             tested,
                             std::move(extras)};
    position_ = {position_.epoch + 1, 0, position_.step};
    untested_ = false;
    if (folder_) {
        Json line = Json::object()
                        .set("epoch", status.epoch)
                        .set("train_loss", status.train_loss)
                        .set("train_accuracy", status.train_accuracy)
                        .set(tested + "_loss", status.test_loss)
                        .set(tested + "_accuracy", status.test_accuracy);
        for (const EpochStatus::Extra& extra : status.extras) line.set(extra.name, extra.value);
        log(line.set("images_per_s", status.images_per_second).set("seconds", status.seconds));
        if (progress_) progress_->epoch(status);
    }
    stopped_ = !group_.all(!asked_to_stop(), "go on");
}

bool TrainingRun::asked_to_stop() {
    if (folder_ && folder_->take_stop_request()) asked_ = true;
    return asked_ || (trial_.alone() && stop_requested());
}

void TrainingRun::report(const std::string& name, Json value) {
    if (report_) report_->set(name, std::move(value));
}

void TrainingRun::save_model() {
    if (untested_ && !trial_.alone()) return;
    guard_->check_values();
    std::vector<NamedTensor> tensors;
    if (folder_) tensors = state_dict(*parameters_);
    while_meeting(group_, "model", [&] {
        if (folder_) save_tensors(folder_->model_path(), tensors, classes_);
    });
}

void TrainingRun::save_checkpoint() {
    guard_->check_values();
    guard_->checkpoint(position_);
    TensorFile state;
    if (folder_) {
        folder_->sync();
        state = training_state(program_, *parameters_, optimizer_, position_, options_);
        state.metadata.insert(state.metadata.end(), classes_.begin(), classes_.end());
    }
    while_meeting(group_, "checkpoint", [&] {
        if (folder_) rg::save_checkpoint(folder_->checkpoint_path(), position_.step, state, int(settings_.keep));
    });
}

void TrainingRun::fail(const std::string& why) {
    if (!report_) return;
    report("note", why);
    try {
        report_->write("failed");
    } catch (const std::exception&) {} // the disk may be full: the error to tell is the first
}

void TrainingRun::log(const Json& line) {
    if (!folder_) return;
    folder_->log(line);
    report_->add(line);
    if (events_) events_->add(line);
    if (trial_.report(line)) asked_ = true;
}

int TrainingRun::end() {
    if (length_.steps == 0) save_model();
    const bool stopped = stopped_ && position_.step < length_.steps;
    if (folder_) {
        report_->write(stopped ? "stopped" : "done");
        trial_.end(stopped);
        note(printable(cat(stopped ? "stopped" : "done", " after step ", position_.step, "; ", folder_->path())));
    }
    return stopped && trial_.alone() ? stopped_exit_code(group_) : 0;
}

} // namespace rg
