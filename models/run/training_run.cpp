// See training_run.h.
#include "models/run/training_run.h"

#include "core/atomic_file.h"
#include "core/clock.h"
#include "core/formatted.h"
#include "core/text.h"
#include "models/run/load_data.h"
#include "models/run/model_file.h"
#include "par/verify.h"

#include <algorithm>
#include <filesystem>

namespace rg {
namespace {

/// Returns a copy of `line` with the values of a score: `prefix` + "loss", `prefix` + "accuracy" and so on.
Json with_score(const Task& task, Json line, const std::string& prefix, double loss, std::span<const double> metrics) {
    line.set(prefix + "loss", loss);
    for (size_t i = 0; i < metrics.size(); ++i) line.set(prefix + task.metrics[i].name, metrics[i]);
    return line;
}

double value_of(const Task& task, const Score& score, const MetricInfo& metric) {
    for (size_t i = 0; i < task.metrics.size(); ++i)
        if (task.metrics[i].name == metric.name) return score.metrics[i];
    return score.loss;
}

} // namespace

void TrainingRunOptions::declare(Options& o) {
    RunOptions::declare(o);
    o.add("new-data", &new_data,
          "with --resume, accept other images of the same classes, if the checkpoint is from the end of an epoch");
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
    o.add("on-nan", &on_nan, {{"stop", OnNan::stop}, {"skip", OnNan::skip}},
          "what to do if a loss or gradient is not finite; stop: end with an error; skip: leave out the step");
}

TrainingRun::TrainingRun(const TrainingRunOptions& settings, Options& options, par::Group& group,
                         TrainingObserver& observer)
    : log(settings, options, group, observer), saver(log), settings_(settings) {}

void TrainingRun::check_data(const data::TrainTest& data, const Json& description) {
    const std::pair<const char*, std::string> sets[] = {
        {"train", "training set"}, {"test", test_set_name + " set"}, {"reserved", "test set"}};
    const auto text_of = [&](const char* set) {
        const Json* const text = description.find(set);
        return text ? text->as_string() : "no images";
    };
    std::vector<std::string> parts;
    for (const auto& [set, name] : sets) parts.push_back(cat(name, " of ", text_of(set)));
    par::verify_same(log.group, "data", parts, "every rank needs the same --data and --test-data");
    saver.metadata = {{"data", description.dump()}};
    skipped_.clear(), held_out_.clear();
    if (!data.held_out.limits.empty())
        for (const std::string& name : (data.reserved.count > 0 ? data.reserved : data.test).names)
            held_out_ += name + "\n";
    for (const std::string& file : data.left_out) skipped_ += printable(file) + "\n";
    if (const std::string counts = data::class_counts(data, test_set_name); !counts.empty())
        log.note(counts.substr(0, counts.size() - 1));
    const TensorFile* const initial = saver.initial_file();
    const bool continues = saver.resumed();
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
        if (!text) continue;
        const std::string was = text->as_string(), is = text_of(set);
        if (was == is) continue;
        RG_CHECK(settings_.new_data, "--resume: expected the ", name, " of ", file.source, ", ", was, ", got ", is,
                 "; give the same --data, or add --new-data to go on with the changed images");
        RG_CHECK(file.number("batch") == 0,
                 "--new-data: expected a checkpoint from the end of an epoch, got one after ", file.number("batch"),
                 " mini-batches (", file.source, ")");
        best_is_of_others_ |= set != sets[0].first;
    }
}

void TrainingRun::restore(Parameters& parameters, const OptimizerState& optimizer, const Task& task) {
    task_ = &task;
    (void)best_metric(); // checks --patience-on
    saver.restore(parameters, optimizer);
    const size_t sums = 1 + size_t(task.sums()); // of the loss and the metrics
    RunPosition& p = log.position;
    if (p.sums.empty()) p.sums.resize(sums);
    RG_CHECK(p.sums.size() == sums, "--resume: expected a checkpoint with ", sums, " sums of metrics, got ",
             p.sums.size(), "; start a new run");
    untested_ = p.epoch > 1 && p.batch;
    guard_.emplace(settings_.on_nan, parameters);
}

void TrainingRun::begin(RunLog::Info info, const Metadata& model) {
    info.metrics = {task_->metrics.begin(), task_->metrics.end()};
    info.samples = "img";
    saver.metadata.insert(saver.metadata.begin(), model.begin(), model.end());
    log.begin(info);
    log.set_in_report("tested", test_set_name);
    if (const RunFolder* const folder = log.folder()) {
        for (const auto& [name, list] : {std::pair("held-out.txt", &held_out_), {"skipped.txt", &skipped_}})
            if (const std::string path = cat(folder->path(), "/", name); !list->empty())
                write_file_atomic(path, *list);
            else
                std::filesystem::remove(path); // that of other images
    }
    apply_patience(); // it may have ended a resumed run already
}

void TrainingRun::begin_epoch(bool has_data) {
    log.write_report("running");
    epoch_begin_ = last_step_ = seconds_now();
    tested_ = false;
    images_at_begin_ = log.position.samples;
    stopped_ = !log.group.all(!log.has_stop_request(), "go on");
    epoch_goes_on_ = log.group.all(has_data, "has data");
    phases.start();
}

bool TrainingRun::handle_non_finite(double loss, const Tensor& non_finite_at, int rank) {
    const auto of_rank = [&](const std::string& cause) {
        return log.group.allgather(cause, "cause of a bad step")[size_t(rank)];
    };
    const std::string warning = guard_->handle_non_finite(log.position.step + 1, loss, non_finite_at, of_rank);
    if (!warning.empty()) log.warn(warning);
    return !warning.empty();
}

void TrainingRun::end_step(const StepResult& result) {
    stopped_ = result.stop;
    epoch_goes_on_ = !result.last;
    const double images = double(result.images);
    RunPosition& p = log.position;
    ++p.step, ++p.batch;
    tested_ = false, untested_ = p.epoch > 1;
    if (!result.skipped) {
        p.sums[0] += result.loss * images;
        for (size_t i = 0; i < result.sums.size(); ++i) p.sums[1 + i] += result.sums[i];
        p.samples += images;
    }
    last_step_ = seconds_now();
    log.writer.check();
    if (log.folder()) {
        Json line = with_score(*task_, Json::object().set("step", p.step).set("epoch", p.epoch), "", result.loss,
                               task_->values(result.sums, images));
        line.set("lr", result.lr);
        if (result.skipped) line.set("skipped", true);
        log.log(line);
    }
    if (log.progress()) {
        std::vector<std::string> metrics{formatted("loss %.3f", p.sums[0] / p.samples)};
        const std::vector<double> values = task_->values(std::span(p.sums).subspan(1), p.samples);
        if (!values.empty()) metrics.push_back(task_->metrics[0].format(values[0], 1));
        log.show_step(std::move(metrics), images);
    }
    const int64_t every = settings_.checkpoint_every;
    if (every && p.step % every == 0 && p.batch < log.info().steps_per_epoch) saver.save_checkpoint();
    phases.lap(PhaseClock::other);
}

void TrainingRun::end_epoch(const Score& test) {
    phases.lap(PhaseClock::evaluate);
    log.set_in_report("ranks", phases.gather(log.group));
    RunPosition& p = log.position;
    const double seconds = last_step_ - epoch_begin_, train_loss = p.sums[0] / p.samples,
                 rate = seconds > 0 ? (p.samples - images_at_begin_) / seconds : 0;
    const std::vector<double> train = task_->values(std::span(p.sums).subspan(1), p.samples);
    const auto texts_of = [&](const std::string& set, double loss, std::span<const double> metrics) {
        EpochStatus::Set texts{set, {formatted("loss %.4f", loss)}};
        for (size_t i = 0; i < metrics.size(); ++i) texts.metrics.push_back(task_->metrics[i].format(metrics[i]));
        return texts;
    };
    const EpochStatus status{.epoch = p.epoch,
                             .epochs = log.epochs(),
                             .train = texts_of("train", train_loss, train),
                             .test = texts_of(test_set_name, test.loss, test.metrics),
                             .samples_per_second = rate,
                             .seconds = seconds};
    untested_ = false;
    last_value_ = value_of(*task_, test, best_metric());
    ++p.epoch;
    p.batch = 0, p.samples = 0;
    std::ranges::fill(p.sums, 0.0);
    apply_patience();
    if (log.folder()) {
        Json line = with_score(*task_, Json::object().set("epoch", status.epoch), "train_", train_loss, train);
        line = with_score(*task_, std::move(line), test_set_name + "_", test.loss, test.metrics);
        log.log(line.set("images_per_s", rate).set("seconds", seconds));
    }
    if (Progress* const progress = log.progress()) progress->epoch(status);
    stopped_ = !log.group.all(!log.has_stop_request(), "go on");
}

bool TrainingRun::test_is_due() const {
    const int64_t every = settings_.validate_every, batch = log.position.batch;
    return every && log.position.step % every == 0 && batch > 0 && batch < log.info().steps_per_epoch && !tested_;
}

void TrainingRun::check_stop() {
    log.poll_stop();
    stopped_ = test_stopped_ = !log.group.all(!log.has_stop_request(), "go on");
    if (stopped_) throw Stopped();
}

void TrainingRun::log_test_in_epoch(const Score& score) {
    tested_ = true;
    epoch_begin_ += phases.lap(PhaseClock::evaluate);
    const Json line = Json::object().set("step", log.position.step).set("epoch", log.position.epoch);
    log.log(with_score(*task_, line, test_set_name + "_", score.loss, score.metrics));
    log.note(cat("step ", log.position.step, "  ", test_set_name, formatted(" loss %.4f ", score.loss),
                 task_->text(score.metrics)));
}

void TrainingRun::keep_if_best(const Score& test) {
    const MetricInfo metric = best_metric();
    saver.save_if_best(value_of(*task_, test, metric), metric.higher_is_better);
}

void TrainingRun::replace_best(const Score& test) {
    RunPosition& p = log.position;
    const int64_t epoch = std::exchange(p.best_epoch, 0);
    keep_if_best(test); // takes any finite value, and writes the file, which names the images
    if (p.best_epoch > 0) p.best_epoch = epoch;
    log.note(cat("the images for tests have changed; on the ", test_set_name, " set, the best model so far has loss ",
                 formatted("%.4f ", test.loss), task_->text(test.metrics)));
}

std::optional<TensorFile> TrainingRun::model_to_test() {
    if (!log.observer.standalone() || log.position.best_epoch == 0 || log.position.step < log.info().steps) return {};
    return saver.best_model();
}

void TrainingRun::write_tables(const std::vector<Detail::CsvTable>& tables) {
    if (!log.folder()) return;
    log.folder()->check_in_place();
    for (const auto& [name, text, csv] : tables)
        log.writer.add(
            [path = cat(log.folder()->path(), "/", name, ".csv"), csv = csv] { write_file_atomic(path, csv); });
}

void TrainingRun::log_test(const std::string& name, const std::string& set, const Score& score) {
    Json line = Json::object().set("end", name);
    if (name == "best_model") line.set("best_epoch", log.position.best_epoch);
    log.log(with_score(*task_, line, set + "_", score.loss, score.metrics));
    log.note(name == "best_model" ? cat(set, " set, with the best model: loss ", formatted("%.4f ", score.loss),
                                        task_->text(score.metrics))
                                  : cat(set, " ", task_->text(score.metrics), " with six views"));
}

void TrainingRun::save_model() {
    if (!untested_ || log.observer.standalone()) saver.save_model();
}

MetricInfo TrainingRun::best_metric() const {
    std::vector<MetricInfo> known{{.name = "loss"}};
    known.insert(known.end(), task_->metrics.begin(), task_->metrics.end());
    const std::string& name = settings_.patience_on;
    return name.empty() ? known[task_->metrics.empty() ? 0 : 1] : metric_named("--patience-on", name, known);
}

void TrainingRun::apply_patience() {
    const RunPosition& p = log.position;
    const int64_t tested = p.epoch - 1;
    if (settings_.patience == 0 || tested - p.best_epoch < settings_.patience) return;
    log.end_early();
    log.note(cat("the last ", tested - p.best_epoch, " epochs have not improved the ", best_metric().name, " of epoch ",
                 p.best_epoch));
}

int TrainingRun::end() {
    std::vector<std::string> lines;
    if (const RunPosition& p = log.position; p.best_epoch > 0) {
        MetricInfo metric = best_metric();
        const std::string best = cat("best ", test_set_name, " ", metric.format(p.best), " in epoch ", p.best_epoch);
        metric.label = "last";
        lines.push_back(best + (last_value_ ? ", " + metric.format(*last_value_) : ""));
    }
    return log.end(stopped(), lines, "predict");
}

} // namespace rg
