// See run_log.h.
#include "models/run/run_log.h"

#include "core/clock.h"
#include "core/text.h"
#include "core/version.h"
#include "models/run/collective.h"
#include "par/session.h"

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
    o.add("init", &init,
          "initial values of the network: a run's folder, one of its files, another safetensors file, or a state dict "
          "of "
          "PyTorch (.pth)")
        .metavar("RUN|FILE")
        .fixed();
    o.add("init-skip", &init_skip,
          "layers, separated by commas, whose tensors in --init are not used, such as fc if the file has other classes")
        .metavar("NAMES")
        .fixed();
    o.add("resume", &resume,
          "continue --run-name, or the newest run, from its last checkpoint, with its options, except --threads")
        .basic();
    declare_progress(o, &progress);
    o.add("report", &write_report, "write report.html into the run's folder");
    o.add("keep", &keep, "number of checkpoints to keep").range(1, 1e6);
}

int64_t RunLog::epochs() const {
    const int64_t per_epoch = info_.steps_per_epoch, left = info_.steps - position.step + position.batch;
    if (per_epoch == 0) return 0;
    return std::max<int64_t>(1, position.epoch - 1 + left / per_epoch + (left % per_epoch > 0));
}

RunLog::RunLog(const RunOptions& settings, Options& options, par::Group& group, TrainingObserver& observer)
    : settings(settings), options(options), group(group), observer(observer) {
    if (observer.standalone()) install_stop_signals(); // before the data are loaded, which may take long
    verify_same_options(group, options);
    for (const auto& [name, value] : options.values()) // whole paths, since a resumed run may start in another folder
        if (std::error_code none; options.is_path(name) && name != "runs" && value != "none" &&
                                  (fs::exists(value, none) || (name == "cache" && !value.empty())))
            options.set(name, fs::absolute(value).string());
    if (!settings.resume || group.rank() != 0) return;
    folder_.emplace(RunFolder::open(settings.runs, options.program(), settings.name));
    folder_->lock();
}

void RunLog::begin(const Info& info) {
    info_ = info;
    if (position.sums.empty()) position.sums.resize(info.metrics.size());
    group.barrier("start");
    epoch_begin_ = seconds_now(), samples_at_begin_ = position.samples;
    begun_ = true;
    if (group.rank() != 0) return;
    const std::string& program = options.program();
    // The parent folder of a trial existed when the trial began. If that folder is gone, a user has deleted it, so do
    // not create it again.
    if (!folder_) folder_.emplace(RunFolder::create(settings.runs, program, settings.name, observer.standalone()));
    folder_->lock();
    folder_->check_in_place(); // a resumed run was opened before the data were loaded, which may have taken long
    folder_->cut_metrics(position.step, position.epoch - 1);
    const Json values = options.to_json();
    const Json* seed = values.find("seed");
    Json metrics = Json::array();
    for (const MetricInfo& metric : info.metrics) metrics.push(metric.json());
    const Json config = Json::object()
                            .set("program", program)
                            .set("version", kVersion)
                            .set("ranks", group.size())
                            .set("seed", seed ? *seed : Json())
                            .set("metrics", std::move(metrics))
                            .set("options", values);
    folder_->write_config(config);
    if (settings.write_report)
        report_.emplace(*folder_, config);
    else
        fs::remove(folder_->report_path()); // the report of a resumed run would show an old state
    set_in_report("summary", info.summary);
    if (info.steps > 0) set_in_report("steps", info.steps);
    if (info.steps_per_epoch > 0)
        set_in_report("steps_per_epoch", info.steps_per_epoch), set_in_report("epochs", epochs());
    if (!observer.standalone() || settings.progress == ProgressKind::none) return;
    progress_.emplace(settings.progress, info.samples);
    if (!info.summary.empty()) note(folded(printable(info.summary), progress_->columns()));
    for (const auto& [line, colour] : early_notes_) note(line, colour);
    early_notes_.clear();
    note(printable(folder_->path()));
}

bool RunLog::goes_on() {
    poll_stop();
    stopped_ = !group.all(!has_stop_request(), "go on");
    return !stopped_ && !is_done();
}

void RunLog::step(const NamedValues& values, double samples, const Tensor& non_finite_at) {
    RG_CHECK(!non_finite_at.defined() || non_finite_at.to_host().data<int32_t>()[0] < 0, "step ", position.step + 1,
             ": expected finite gradients and a finite loss, got another one; make the learning rate smaller; saved ",
             "files are unchanged");
    const auto value_of = [&](const MetricInfo& metric) {
        const auto found = std::ranges::find(values, metric.name, &NamedValues::value_type::first);
        RG_CHECK(found != values.end(), "RunLog::step: expected a value of ", metric.name, ", got none");
        RG_CHECK(std::isfinite(found->second), "step ", position.step + 1, ": expected a finite ", metric.name,
                 ", got ", found->second, "; make the learning rate smaller; saved files are unchanged");
        return found->second;
    };
    const std::vector<MetricInfo>& metrics = info_.metrics;
    RunPosition& p = position;
    RG_CHECK(p.sums.size() == metrics.size(), "RunLog::step: expected a checkpoint with ", metrics.size(),
             " sums of metrics, got ", p.sums.size(), "; start a new run");
    for (size_t i = 0; i < metrics.size(); ++i) p.sums[i] += samples * value_of(metrics[i]);
    ++p.step, ++p.batch, p.samples += samples;
    writer.check();
    if (!folder_) return;
    Json line = Json::object().set("step", p.step);
    if (info_.steps_per_epoch > 0) line.set("epoch", p.epoch);
    for (const auto& [name, value] : values) line.set(name, value);
    log(line);
    write_report("running");
    if (!progress_) return;
    std::vector<std::string> texts;
    for (size_t i = 0; i < metrics.size(); ++i) texts.push_back(metrics[i].format(p.sums[i] / p.samples, 1));
    show_step(std::move(texts), samples);
}

void RunLog::show_step(std::vector<std::string> metrics, double samples) {
    const RunPosition& p = position;
    progress_->step({.epoch = p.epoch,
                     .epochs = epochs(),
                     .step = p.step,
                     .steps = info_.steps,
                     .metrics = std::move(metrics),
                     .samples = samples,
                     .epoch_left = std::min(info_.steps_per_epoch - p.batch, info_.steps - p.step)});
}

void RunLog::end_epoch(const NamedValues& results) {
    RunPosition& p = position;
    const double now = seconds_now(), seconds = now - epoch_begin_;
    const double rate = seconds > 0 ? (p.samples - samples_at_begin_) / seconds : 0;
    Json line = Json::object().set("epoch", p.epoch);
    EpochStatus status{
        .epoch = p.epoch, .epochs = epochs(), .test = {}, .samples_per_second = rate, .seconds = seconds};
    for (size_t i = 0; i < info_.metrics.size(); ++i) {
        const double mean = p.sums[i] / p.samples;
        line.set("train_" + info_.metrics[i].name, mean);
        status.train.metrics.push_back(info_.metrics[i].format(mean));
    }
    for (const auto& [name, value] : results) {
        line.set(name, value);
        MetricInfo shown{.name = name};
        for (const MetricInfo& metric : info_.metrics)
            if (name.ends_with("_" + metric.name)) shown.unit = metric.unit;
        status.test.metrics.push_back(shown.format(value));
    }
    ++p.epoch;
    p.batch = 0, p.samples = 0, samples_at_begin_ = 0, epoch_begin_ = now;
    std::ranges::fill(p.sums, 0.0);
    log(line.set("samples_per_s", rate).set("seconds", seconds));
    if (progress_) progress_->epoch(status);
}

void RunLog::result(const NamedValues& values) {
    Json line = Json::object().set("end", "result");
    for (const auto& [name, value] : values) line.set(name, value), note(cat(name, " ", value));
    log(line);
}

bool RunLog::has_stop_request() {
    if (folder_ && folder_->take_stop_request()) stop_request_ = true;
    return stop_request_ || (observer.standalone() && stop_requested());
}

void RunLog::note(const std::string& line, Colour colour) {
    if (progress_)
        progress_->note(line, colour);
    else if (!begun_)
        early_notes_.emplace_back(line, colour);
}

void RunLog::warn(const std::string& text) { note(printable(text), Colour::yellow); }

void RunLog::log(const Json& line) {
    if (!folder_) return;
    folder_->log(line);
    if (observer.on_metrics(line)) stop_request_ = true;
}

void RunLog::set_in_report(const std::string& name, Json value) {
    if (report_) report_->set(name, std::move(value));
}

void RunLog::write_report(const std::string& state) {
    if (!report_ || (state == "running" && seconds_now() < next_report_)) return;
    next_report_ = HUGE_VAL; // until this write ends
    writer.add([this, write = report_->writer_of(state)] {
        // The report of a long training is large, so spend at most a 21st of the time on it.
        next_report_ = 20 * wall_seconds(write) + seconds_now();
    });
}

void RunLog::fail(const std::string& why) {
    if (!report_) return;
    set_in_report("note", why);
    try {
        writer.finish();
    } catch (const std::exception&) {}
    try {
        report_->write("failed");
    } catch (const std::exception&) {} // the disk may be full; only the first error matters
}

int RunLog::end(bool stopped, const std::vector<std::string>& lines, const std::string& next_command) {
    write_report(stopped ? "stopped" : "done");
    run_while_polling(group, "files", [this] { writer.finish(); });
    if (folder_) observer.end(stopped);
    if (progress_) {
        progress_->end();
        note(
            cat(stopped ? "stopped" : "done", " after step ", position.step, "; ", duration_text(progress_->seconds())),
            stopped ? Colour::yellow : Colour::green);
        for (const std::string& line : lines) note(line);
        if (report_) note(printable("report: " + folder_->report_path()));
        // Whole paths, so that the command works in any folder.
        const fs::path folder = fs::absolute(folder_->path()).lexically_normal();
        const auto word = [](const fs::path& path) { return shell_word(path.string()); };
        const fs::path started = invocation_name(); // without a folder, PATH finds it anywhere
        const std::string program =
            word(started.has_parent_path() ? fs::absolute(started).lexically_normal() : started);
        const std::string ranks = group.size() > 1 ? cat("mpiexec -n ", group.size(), " ") : "";
        const std::string resume = cat(ranks, program, " --resume --runs ", word(folder.parent_path()), " --run-name ",
                                       word(folder.filename()));
        if (stopped || !next_command.empty())
            note(printable(cat("next: ", stopped ? resume : cat(program, " ", next_command, " ", word(folder)))));
    }
    return stopped && observer.standalone() ? exit_code_after_stop(group) : 0;
}

} // namespace rg
