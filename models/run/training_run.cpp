// See training_run.h.
#include "ringgrad/models/run/training_run.h"

#include "ringgrad/core/atomic_file.h"
#include "ringgrad/core/checkpoint.h"
#include "ringgrad/core/checksum.h"
#include "ringgrad/core/clock.h"
#include "ringgrad/core/device.h"
#include "ringgrad/core/formatted.h"
#include "ringgrad/core/text.h"
#include "ringgrad/core/version.h"
#include "ringgrad/models/nets/state_dict.h"
#include "ringgrad/models/run/load_data.h"
#include "ringgrad/models/run/model_file.h"
#include "ringgrad/models/run/training_state.h"
#include "ringgrad/par/session.h"
#include "ringgrad/par/verify.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace fs = std::filesystem;

namespace rg {

void RunOptions::declare(Options& o) {
    o.group(cat("Run (exit status 0: done, or stopped by Ctrl-C; 1: error; ", kExitInterrupted,
                ": ended by another signal, for --resume; ", par::kExitRanksDiffer, ": ranks differ)"));
    o.add("runs", &runs, "folder of all runs").metavar("DIR");
    o.add("run-name", &name, "name of this run's folder (default: program name and start time)")
        .metavar("NAME")
        .basic();
    o.add("init", &init, "initial values of the network: a run's folder, one of its files, or another safetensors file")
        .metavar("RUN|FILE")
        .fixed();
    o.add("init-skip", &init_skip,
          "layers, separated by commas, whose tensors in --init are not used, such as fc if the file has other classes")
        .metavar("NAMES")
        .fixed();
    o.add("resume", &resume,
          "continue --run-name, or the newest run, from its last checkpoint, with its options, except --threads")
        .basic();
    o.add("new-data", &new_data,
          "with --resume, accept other images of the same classes, if the checkpoint is from the end of an epoch");
    declare_progress(o, &progress);
    o.add("report", &write_report, "write report.html into the run's folder");
    o.add("checkpoint-every", &checkpoint_every,
          "steps between checkpoints, besides that at the end of each epoch; 0: none")
        .at_least(0);
    o.add("validate-every", &validate_every,
          "steps between tests within an epoch, on the validation set if there is one; 0: none")
        .at_least(0);
    o.add("patience", &patience,
          "end after this many epochs without a better --patience-on, on the validation set if there is one; 0: off")
        .at_least(0);
    o.add("patience-on", &patience_on,
          "metric of the best model, and of --patience: loss, or one such as accuracy (default: the main metric)")
        .metavar("METRIC")
        .fixed();
    o.add("keep", &keep, "number of checkpoints to keep").range(1, 1e6);
    o.add("on-nan", &on_nan, {{"stop", OnNan::stop}, {"skip", OnNan::skip}},
          "what to do if a loss or gradient is not finite; stop: end with an error; skip: leave out the step");
}

TrainingRun::TrainingRun(const RunOptions& settings, Options& options, par::Group& group, TrainingObserver& observer)
    : program_(options.program()), settings_(settings), options_(options), group_(group), observer_(observer) {
    if (observer.standalone()) install_stop_signals(); // before the data are loaded, which may take long
    verify_same_options(group, options);
    for (const auto& [name, value] : options.values()) // whole paths, since a resumed run may start in another folder
        if (std::error_code none; options.is_path(name) && name != "runs" && fs::exists(value, none))
            options.set(name, fs::absolute(value).string());
    RG_CHECK(settings.init_skip.empty() || !settings.init.empty() || settings.resume, program_,
             ": expected --init with --init-skip, got none; omit --init-skip");
    if (!settings.resume) return;
    RG_CHECK(!options.was_given("init"), program_,
             ": expected --init (starts a new run) or --resume (continues a run), got both; omit one");
    if (group.rank() == 0) {
        folder_.emplace(RunFolder::open(settings.runs, program_, settings.name));
        folder_->lock();
    }
    // Rank 0 holds the lock, if the file system has locks, before the other ranks read. So no other training keeps them
    // from loading the same checkpoint.
    const std::string path = group.allgather(folder_ ? folder_->checkpoint_path() : "", "run to resume")[0];
    checkpoint_ = std::make_unique<LoadedCheckpoint>(load_latest_checkpoint(path));
    restore_options(checkpoint_->state, options);
    verify_same_options(group, options); // each rank has read a checkpoint of its own
}

TrainingRun::~TrainingRun() = default;

void TrainingRun::check_data(const data::TrainTest& data, const Json& description) {
    const std::pair<const char*, std::string> sets[] = {
        {"train", "training set"}, {"test", test_set_name + " set"}, {"reserved", "test set"}};
    const auto text_of = [&](const char* set) {
        const Json* const text = description.find(set);
        return text ? text->as_string() : "no images";
    };
    std::vector<std::string> parts;
    for (const auto& [set, name] : sets) parts.push_back(cat(name, " of ", text_of(set)));
    par::verify_same(group_, "data", parts, "every rank needs the same --data and --test-data");
    data_ = description, skipped_.clear(), held_out_.clear();
    if (!data.held_out.limits.empty())
        for (const std::string& name : (data.reserved.count > 0 ? data.reserved : data.test).names)
            held_out_ += name + "\n";
    for (const std::string& file : data.left_out) skipped_ += printable(file) + "\n";
    class_counts_ = data::class_counts(data, test_set_name);
    const TensorFile* const initial = this->initial();
    const bool continues = checkpoint_ != nullptr;
    if (!initial || (!continues && (!settings_.init_skip.empty() || !initial->find_text("classes")))) return;
    const TensorFile& file = *initial;
    const std::vector<std::string> saved = stored_classes(file), &classes = data.train.classes;
    const bool same_head = continues || saved.size() == classes.size(); // another one cannot be loaded anyway
    for (size_t i = 0; same_head && i < std::max(saved.size(), classes.size()); ++i) {
        const std::string was = i < saved.size() ? saved[i] : "none", is = i < classes.size() ? classes[i] : "none";
        RG_CHECK(was == is, continues ? "--resume" : "--init", ": expected the classes of ", file.source,
                 ", whose class ", i, " is ", was, ", got ", is,
                 continues ? "; give the same --data, or start a new run with --init and --init-skip"
                           : "; omit the layer of the classes by --init-skip, such as --init-skip fc");
    }
    if (!continues) return;
    const Json stored = stored_data(file);
    for (const auto& [set, name] : sets) {
        const Json* const text = stored.is_object() ? stored.find(set) : nullptr;
        const std::string* const older = file.find_text(cat("data_", set)); // in checkpoints of older versions
        if (!text && !older) continue;
        const std::string was = text ? text->as_string() : *older, is = text_of(set);
        if (was == is) continue;
        RG_CHECK(settings_.new_data, "--resume: expected the ", name, " of ", file.source, ", ", was, ", got ", is,
                 "; give the same --data, or add --new-data to go on with the changed images");
        RG_CHECK(file.number("batch") == 0,
                 "--new-data: expected a checkpoint from the end of an epoch, got one after ", file.number("batch"),
                 " mini-batches (", file.source, ")");
    }
}

void TrainingRun::restore_parameters(Parameters& parameters, const OptimizerState& optimizer, const Task& task) {
    parameters_ = &parameters, optimizer_ = optimizer, task_ = &task;
    position_.sums.assign(size_t(task.sums()), 0);
    (void)best_by(); // checks --patience-on
    if (checkpoint_)
        position_ = restore_training(program_, checkpoint_->state, parameters, optimizer, task),
        untested_ = position_.epoch > 1 && position_.batch;
    else if (const TensorFile* const file = initial())
        for_option("--init", [&] { load_state_dict(parameters, *file, list_of("--init-skip", settings_.init_skip)); });
    init_.reset();
    verify_state("every rank needs the same files for --init and --resume");
    const std::vector<std::string> devices = group_.allgather(parameters.values().device() ? "gpu" : "cpu", "devices");
    if (std::ranges::count(devices, "cpu") > 0)
        if (const auto gpu = std::ranges::find(devices, "gpu"); gpu != devices.end())
            first_gpu_rank_ = int(gpu - devices.begin());
    guard_.emplace(settings_.on_nan, parameters, optimizer);
}

/// Collective. Throws par::RanksDiffer unless all ranks have the same position, parameters, statistics of batch norm
/// and state of the optimizer. `hint` says how to correct this.
void TrainingRun::verify_state(const std::string& hint) const {
    if (group_.size() == 1) return;
    const Position& p = position_;
    std::vector<std::string> parts{
        cat("step ", p.step, " (batch ", p.batch, " of epoch ", p.epoch, ", best ", p.best, ")")};
    const auto add = [&](const std::string& name, const Tensor& value) {
        const Tensor host = value.to_host();
        const std::string_view bytes(reinterpret_cast<const char*>(host.bytes_data()), size_t(host.bytes()));
        parts.push_back(cat(name, " with checksum ", checksum(bytes)));
    };
    add("parameters", parameters_->values());
    add("running statistics", parameters_->state());
    for (const auto& [name, value] : optimizer_) add(name, value);
    par::verify_same(group_, "state of the training", parts, hint);
}

/// Collective. Gives the ranks without a GPU, which are idle, the state of a rank with one: CPUs round differently, so
/// that their own state differs a little.
void TrainingRun::copy_to_cpu_ranks() const {
    std::vector<Tensor> state{parameters_->values(), parameters_->state()};
    for (const auto& [name, value] : optimizer_) state.push_back(value);
    for (const Tensor& value : state) {
        const Tensor host = value.to_host();
        group_.broadcast({host.bytes_data(), size_t(host.bytes())}, first_gpu_rank_, "state of the training");
        host.note_write();
    }
}

/// Collective. No file must hold values that are not finite, or those of ranks that differ: a run that was resumed from
/// it would end without an error.
void TrainingRun::check_before_save() const {
    if (first_gpu_rank_ >= 0) copy_to_cpu_ranks();
    verify_state("they have computed different values, so test the memory of both; saved files are unchanged");
    guard_->check_values();
}

void TrainingRun::begin(const Length& length, const Metadata& model, const std::string& summary,
                        const std::vector<std::string>& warnings) {
    length_ = length;
    apply_patience(); // --patience may have ended a resumed run already
    model_ = model;
    model_.emplace_back("data", data_.dump());
    group_.barrier("start");
    if (group_.rank() != 0) return;
    // The parent folder of a trial existed when the trial began. If that folder is gone, a user has deleted it, so do
    // not create it again.
    if (!folder_) folder_.emplace(RunFolder::create(settings_.runs, program_, settings_.name, observer_.standalone()));
    folder_->lock();
    folder_->check_in_place(); // a resumed run was opened before the data were loaded, which may have taken long
    folder_->cut_metrics(position_.step, position_.epoch - 1);
    const Json options = options_.to_json();
    const Json* seed = options.find("seed");
    Json metrics = Json::array();
    for (const Metric& metric : task_->metrics) metrics.push(metric.json());
    const Json config = Json::object()
                            .set("program", program_)
                            .set("version", kVersion)
                            .set("ranks", group_.size())
                            .set("seed", seed ? *seed : Json())
                            .set("metrics", std::move(metrics))
                            .set("options", options);
    folder_->write_config(config);
    if (!held_out_.empty()) write_file_atomic(folder_->path() + "/held-out.txt", held_out_);
    if (!skipped_.empty()) write_file_atomic(folder_->skipped_path(), skipped_);
    if (settings_.write_report)
        report_.emplace(*folder_, config);
    else
        fs::remove(folder_->report_path()); // that of a resumed run would have an old state
    set_in_report("summary", summary);
    set_in_report("tested", test_set_name);
    set_in_report("epochs", length.epochs());
    set_in_report("steps_per_epoch", length.batches);
    if (observer_.standalone() && settings_.progress != ProgressKind::none) progress_.emplace(settings_.progress);
    if (checkpoint_)
        for (const std::string& warning : checkpoint_->warnings) note(printable(warning), Colour::yellow);
    if (progress_) note(folded(printable(summary), progress_->columns()));
    if (progress_ && !class_counts_.empty()) note(class_counts_.substr(0, class_counts_.size() - 1));
    for (const std::string& warning : warnings) note(printable(warning), Colour::yellow);
    note(printable(folder_->path()));
    apply_patience(); // a second time, since note() can print the message only now
    if (checkpoint_) note(printable(cat("resumed from ", checkpoint_->path, " at step ", position_.step)));
}

void TrainingRun::begin_epoch(bool has_data) {
    write_report("running");
    epoch_begin_ = last_step_ = seconds_now();
    tested_ = false;
    images_at_begin_ = position_.samples;
    stopped_ = !group_.all(!has_stop_request(), "go on");
    epoch_goes_on_ = group_.all(has_data, "has data");
    phases.start();
}

bool TrainingRun::skips_non_finite(double loss, const Tensor& non_finite_at) {
    const std::string warning = guard_->handle_non_finite(position_.step + 1, loss, non_finite_at);
    if (!warning.empty()) note(printable(warning), Colour::yellow);
    return !warning.empty();
}

void TrainingRun::end_step(const StepResult& result) {
    stopped_ = result.stop;
    epoch_goes_on_ = !result.last;
    const double images = double(result.images);
    Position& p = position_;
    ++p.step, ++p.batch;
    tested_ = false, untested_ = p.epoch > 1;
    if (!result.skipped) {
        p.loss_sum += result.loss * images;
        for (size_t i = 0; i < p.sums.size(); ++i) p.sums[i] += result.sums[i];
        p.samples += images;
    }
    last_step_ = seconds_now();
    writer_.check();
    if (folder_) {
        Json line = with_score(Json::object().set("step", p.step).set("epoch", p.epoch), "", result.loss,
                               task_->values(result.sums, images));
        line.set("lr", result.lr);
        if (result.skipped) line.set("skipped", true);
        log(line);
        if (progress_) {
            const std::vector<double> values = task_->values(p.sums, p.samples);
            progress_->step({.epoch = p.epoch,
                             .epochs = length_.epochs(),
                             .step = p.step,
                             .steps = length_.steps,
                             .loss = p.loss_sum / p.samples,
                             .metric = values.empty() ? "" : task_->metrics[0].text(values[0], 1),
                             .images = result.images,
                             .epoch_left = std::min(length_.batches - p.batch, length_.steps - p.step)});
        }
    }
    const int64_t every = settings_.checkpoint_every;
    if (every && p.step % every == 0 && p.batch < length_.batches) save_checkpoint();
    phases.lap(PhaseClock::other);
}

void TrainingRun::end_epoch(const Score& test) {
    phases.lap(PhaseClock::evaluate);
    set_in_report("ranks", phases.gather(group_));
    const double seconds = last_step_ - epoch_begin_;
    const std::vector<double> train = task_->values(position_.sums, position_.samples);
    const EpochStatus status{.epoch = position_.epoch,
                             .epochs = length_.epochs(),
                             .train_loss = position_.loss_sum / position_.samples,
                             .test_loss = test.loss,
                             .train_metrics = texts_of(train),
                             .test_metrics = texts_of(test.metrics),
                             .images_per_second = seconds > 0 ? (position_.samples - images_at_begin_) / seconds : 0,
                             .seconds = seconds,
                             .test_set_name = test_set_name};
    untested_ = false;
    last_value_ = value_of(test);
    ++position_.epoch;
    position_.batch = 0, position_.loss_sum = position_.samples = 0;
    std::fill(position_.sums.begin(), position_.sums.end(), 0.0);
    apply_patience();
    if (folder_) {
        Json line = with_score(Json::object().set("epoch", status.epoch), "train_", status.train_loss, train);
        line = with_score(std::move(line), test_set_name + "_", status.test_loss, test.metrics);
        log(line.set("images_per_s", status.images_per_second).set("seconds", status.seconds));
        if (progress_) progress_->epoch(status);
    }
    stopped_ = !group_.all(!has_stop_request(), "go on");
}

bool TrainingRun::has_stop_request() {
    if (folder_ && folder_->take_stop_request()) stop_request_ = true;
    return stop_request_ || (observer_.standalone() && stop_requested());
}

void TrainingRun::set_in_report(const std::string& name, Json value) {
    if (report_) report_->set(name, std::move(value));
}

const TensorFile* TrainingRun::initial() {
    if (checkpoint_) return &checkpoint_->state;
    if (!init_ && !settings_.init.empty()) init_ = for_option("--init", [&] { return load_model(settings_.init); });
    return init_ ? &*init_ : nullptr;
}

bool TrainingRun::test_is_due() const {
    const int64_t every = settings_.validate_every, batch = position_.batch;
    return every && position_.step % every == 0 && batch > 0 && batch < length_.batches && !tested_;
}

void TrainingRun::check_stop() {
    pulse();
    stopped_ = test_stopped_ = !group_.all(!has_stop_request(), "go on");
    if (stopped_) throw Stopped();
}

void TrainingRun::end_test_in_epoch(const Score& score) {
    tested_ = true;
    epoch_begin_ += phases.lap(PhaseClock::evaluate);
    const Json line = Json::object().set("step", position_.step).set("epoch", position_.epoch);
    log(with_score(line, test_set_name + "_", score.loss, score.metrics));
    note(cat("step ", position_.step, "  ", test_set_name, formatted(" loss %.4f ", score.loss),
             task_->text(score.metrics)));
}

void TrainingRun::keep_if_best(const Score& test) {
    const double value = value_of(test);
    if (!std::isfinite(value)) return; // JSON has no such number, so no checkpoint could hold it
    if (position_.best_epoch > 0 && !best_by().is_better(value, position_.best)) return;
    position_.best = value, position_.best_epoch = position_.epoch;
    check_before_save();
    write_model(&RunFolder::best_model_path);
}

std::optional<TensorFile> TrainingRun::model_to_test() {
    if (!observer_.standalone() || position_.best_epoch == 0 || position_.step < length_.steps) return {};
    writer_.finish();
    const std::string bytes =
        group_.allgather(folder_ ? read_file(folder_->best_model_path()) : "", "best model").front();
    return decode_tensors(bytes, "best model");
}

void TrainingRun::end_test(const Score& score) {
    const Json line = Json::object().set("end", "best_model").set("best_epoch", position_.best_epoch);
    log(with_score(line, "test_", score.loss, score.metrics));
    note(cat("test set, with the best model: loss ", formatted("%.4f ", score.loss), task_->text(score.metrics)));
}

void TrainingRun::end_test_with_views(const Score& score) {
    log(with_score(Json::object().set("end", "six_views"), test_set_name + "_", score.loss, score.metrics));
    note(cat(test_set_name, " ", task_->text(score.metrics), " with six views"));
}

void TrainingRun::save_model() {
    if (untested_ && !observer_.standalone()) return;
    check_before_save();
    write_model(&RunFolder::model_path);
}

void TrainingRun::write_model(std::string (RunFolder::*path)() const) {
    make_room();
    if (!folder_) return;
    writer_.add([this, path = ((*folder_).*path)(), tensors = state_dict(*parameters_)] {
        save_tensors(path, tensors, model_);
    });
}

void TrainingRun::write_report(const std::string& state) {
    if (!report_ || (state == "running" && seconds_now() < next_report_)) return;
    next_report_ = HUGE_VAL; // until this one is written
    writer_.add([this, write = report_->writing(state)] {
        // That of a long training is large, so spend at most a 21st of the time on it.
        next_report_ = 20 * seconds_of(write) + seconds_now();
    });
}

void TrainingRun::make_room() {
    run_while_polling(group_, "files", [this] {
        writer_.make_room();
        if (checkpoint_written_.valid()) checkpoint_written_.wait();
    });
}

MetricName TrainingRun::best_by() const {
    std::vector<MetricName> known{{.name = "loss"}};
    known.insert(known.end(), task_->metrics.begin(), task_->metrics.end());
    const std::string& name = settings_.patience_on;
    return name.empty() ? known[task_->metrics.empty() ? 0 : 1] : metric_named("--patience-on", name, known);
}

double TrainingRun::value_of(const Score& score) const {
    const std::string name = best_by().name;
    for (size_t i = 0; i < task_->metrics.size(); ++i)
        if (task_->metrics[i].name == name) return score.metrics[i];
    return score.loss;
}

Json TrainingRun::with_score(Json line, const std::string& prefix, double loss, std::span<const double> metrics) const {
    line.set(prefix + "loss", loss);
    for (size_t i = 0; i < metrics.size(); ++i) line.set(prefix + task_->metrics[i].name, metrics[i]);
    return line;
}

std::vector<std::string> TrainingRun::texts_of(std::span<const double> metrics) const {
    std::vector<std::string> texts;
    for (size_t i = 0; i < metrics.size(); ++i) texts.push_back(task_->metrics[i].text(metrics[i]));
    return texts;
}

void TrainingRun::apply_patience() {
    const int64_t tested = position_.epoch - 1;
    if (settings_.patience == 0 || tested - position_.best_epoch < settings_.patience) return;
    length_.steps = std::min(length_.steps, position_.step);
    note(cat("the last ", tested - position_.best_epoch, " epochs have not improved the ", best_by().name, " of epoch ",
             position_.best_epoch));
}

void TrainingRun::save_checkpoint() {
    check_before_save();
    make_room();
    if (!folder_) return;
    TensorFile state = training_state(program_, *parameters_, optimizer_, position_, options_);
    state.metadata.insert(state.metadata.end(), model_.begin(), model_.end());
    checkpoint_written_ = writer_.add([this, step = position_.step, state = std::move(state)] {
        folder_->sync();
        rg::save_checkpoint(folder_->checkpoint_path(), step, state, int(settings_.keep));
    });
}

void TrainingRun::fail(const std::string& why) {
    if (!report_) return;
    set_in_report("note", why);
    try {
        writer_.finish();
    } catch (const std::exception&) {}
    try {
        report_->write("failed");
    } catch (const std::exception&) {} // the disk may be full; only the first error matters
}

void TrainingRun::log(const Json& line) {
    if (!folder_) return;
    folder_->log(line);
    if (report_) report_->add(line);
    if (observer_.on_metrics(line)) stop_request_ = true;
}

void TrainingRun::print_end() {
    if (!progress_) return;
    progress_->end();
    note(cat(stopped() ? "stopped" : "done", " after step ", position_.step, "; ", duration_text(progress_->seconds())),
         stopped() ? Colour::yellow : Colour::green);
    MetricName metric = best_by();
    if (position_.best_epoch > 0) {
        std::string best = cat("best ", test_set_name, " ", metric.text(position_.best), " in epoch ",
                               position_.best_epoch, last_value_ ? ", " : "");
        metric.label = "last";
        note(best + (last_value_ ? metric.text(*last_value_) : ""));
    }
    if (report_) note(printable("report: " + folder_->report_path()));
    // Whole paths, so that the command works in any folder. A program without a folder was found by PATH.
    const fs::path folder = fs::absolute(folder_->path()).lexically_normal(), started = program_path();
    const std::string program =
        shell_word((started.has_parent_path() ? fs::absolute(started).lexically_normal() : started).string());
    const auto word = [](const fs::path& path) { return shell_word(path.string()); };
    note(printable(stopped()
                       ? cat("next: ", group_.size() > 1 ? cat("mpiexec -n ", group_.size(), " ") : "", program,
                             " --resume --runs ", word(folder.parent_path()), " --run-name ", word(folder.filename()))
                       : cat("next: ", program, " predict ", word(folder))));
}

int TrainingRun::end() {
    write_report(stopped() ? "stopped" : "done");
    run_while_polling(group_, "files", [this] { writer_.finish(); });
    if (folder_) {
        observer_.end(stopped());
        print_end();
    }
    return stopped() && observer_.standalone() ? stopped_exit_code(group_) : 0;
}

} // namespace rg
