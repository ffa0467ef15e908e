// See trials.h. Rank 0 controls the trials, while all ranks run them.
#include "models/sweep/trials.h"

#include "core/atomic_file.h"
#include "core/clock.h"
#include "core/text.h"
#include "core/version.h"
#include "models/run/collective.h"
#include "models/run/run_folder.h"
#include "models/run/signals.h"
#include "models/sweep/trials_board.h"
#include "models/sweep/trials_report.h"
#include "par/task_pool.h"
#include "par/verify.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <set>

namespace fs = std::filesystem;

namespace rg {
namespace {

constexpr double kControlSeconds = 0.25;

/// The first argument of all trials: a tenth of the training images is for validation, unless later arguments differ.
constexpr const char* kDefaultValidation = "--validation=0.1";

/// Reads the complete lines of a control file that follow those in `seen`, and cancels trial N for each line "stop N".
/// Adds these lines to `seen`. Reads all lines of a file that does not begin with `seen`, since it was written anew.
void read_control(par::TaskPool& pool, const std::string& path, size_t trials, std::string& seen) {
    std::error_code none;
    if (!fs::exists(path, none)) return;
    const std::string text = read_file(path);
    size_t begin = text.starts_with(seen) ? seen.size() : 0;
    for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
        if (text.compare(begin, 5, "stop ") != 0) continue;
        int64_t number = 0;
        std::from_chars(text.data() + begin + 5, text.data() + end, number);
        if (number >= 1 && number <= int64_t(trials)) pool.cancel(number, "on request");
    }
    seen = text.substr(0, begin);
}

/// Returns true for the line of an epoch. Lines of steps also have "step", and other lines have no "epoch".
bool is_epoch(const Json& line) { return line.find("epoch") && !line.find("step"); }

/// Calls `use` with the line of each epoch in the metrics of a run. Ends at the first damaged one, and does nothing if
/// the file cannot be read.
void for_each_epoch(const std::string& run, const std::function<void(const Json&)>& use) try {
    std::ifstream file(run + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);)
        if (line.starts_with("{\"epoch\"")) use(Json::parse(line, run));
} catch (const Error&) {}

/// Returns the line of the last epoch in the metrics of a run, or null if there is none or the file cannot be read.
/// Reads the file, since a resumed trial may end before it reports another epoch.
Json last_epoch(const std::string& run) {
    Json last;
    for_each_epoch(run, [&](const Json& epoch) { last = epoch; });
    return last;
}

/// Returns true if a run has a complete checkpoint. A kill may leave an incomplete one with another ending.
bool has_checkpoint(const std::string& run) {
    std::error_code none;
    for (const fs::directory_entry& file : fs::directory_iterator(run + "/checkpoint", none))
        if (file.path().extension() == ".safetensors") return true;
    return false;
}

/// Returns the report of a trial whose process has a stop request. It ends the sweep: if only this rank has got the
/// signal, the trials that the rank would get next would fail one after the other.
Json stop_report() { return Json::object().set("stop", true); }

/// Connects a training with the pool: passes on its metrics, and stops it on request or if it reaches a fixed limit.
class TrialObserver final : public TrainingObserver {
public:
    TrialObserver(par::TaskContext& task, const Trials& trials) : task_(task), trials_(trials) {}
    bool standalone() const override { return false; }
    bool on_metrics(const Json& line) override {
        task_.report(line);
        if (is_epoch(line) && stop_reason_.empty()) stop_reason_ = trials_.rules.stop_reason(line, trials_.ranking);
        if (stop_reason_.empty() && task_.cancelled()) stop_reason_ = "on request";
        return !stop_reason_.empty();
    }
    void end(bool stopped) override {
        complete_ = !stopped;
        if (stopped && stop_reason_.empty()) stop_reason_ = "on request";
    }
    bool poll_stop() override {
        const bool cancelled = task_.cancelled(); // also lets the pool handle its messages
        if (task_.group().rank() != 0 || !stop_requested()) return cancelled;
        task_.report(stop_report());
        return true;
    }
    bool complete() const { return complete_; }
    const std::string& stop_reason() const { return stop_reason_; }

private:
    par::TaskContext& task_;
    const Trials& trials_;
    // complete_ and stop_reason_ are set only on the group's first rank.
    bool complete_ = false;
    std::string stop_reason_; // empty: no reason to stop; also set if a rule applied only after the last epoch
};

/// The task of the pool: runs one trial in a subfolder of `runs`. Returns its result on the first rank of the trial,
/// else null. If an earlier run of the program has left a checkpoint of this trial, the trial continues from that. The
/// journal identifies a trial by `args`. So `args` has only its number, its settings, the options that a run cannot
/// change, and the length of the training, but not the folder, the number of threads or the stop rules.
Json run_trial(par::TaskContext& task, const Json& args, const std::string& runs, const Trials& trials) {
    par::Group& group = task.group();
    const std::string name = cat(args.at("trial").as_int()), folder = runs + "/" + name;
    if (!group.all(!stop_requested(), "go on")) task.report(stop_report());
    std::error_code none;
    RG_CHECK(group.rank() != 0 || fs::is_directory(runs, none), "trial: expected the folder ", runs,
             ", got none; it was deleted or renamed");
    const bool resumes = group.all(has_checkpoint(folder), "checkpoint");
    std::vector<std::string> arguments = arguments_of(trials, trials.table[size_t(args.at("trial").as_int()) - 1]);
    if (resumes) {
        arguments = without(arguments, "--init");
        arguments.push_back("--resume");
    } else if (group.rank() == 0) {
        fs::remove_all(folder, none);
    }
    group.barrier("folder");
    arguments.push_back("--runs=" + runs);
    arguments.push_back("--run-name=" + name);
    TrialObserver trial(task, trials);
    const int code = trials.program->run(group, arguments, trial);
    RG_CHECK(code == 0, "trial: expected exit code 0, got ", code);
    if (group.rank() != 0) return {};
    RG_CHECK(trial.complete() || !stop_requested(), "interrupted"); // fails the task, so --resume runs it again
    const std::string reason = trial.complete() ? "" : trial.stop_reason();
    return Json::object().set("last", last_epoch(folder)).set("stopped", reason);
}

/// Returns the rows of all trials, after --resume with the results in the trials' metrics.jsonl.
std::vector<TrialRow> rows_of(const Trials& trials, const std::string& folder) {
    std::vector<TrialRow> rows(trials.table.size());
    for (size_t i = 0; i < rows.size(); ++i) {
        rows[i].number = int64_t(i) + 1;
        rows[i].settings = trials.table[i];
        rows[i].folder = cat("trials/", i + 1);
        rows[i].last = last_epoch(folder + "/" + rows[i].folder);
    }
    return rows;
}

/// The state of all trials of a run, and their common report.
struct TrialsRun {
    TrialsRun(RunFolder& folder, const Trials& trials)
        : folder(folder),
          trials(trials),
          rows(rows_of(trials, folder.path())),
          report(folder.path(), rows, trials.ranking,
                 [&trials](const TrialRow& row) { return trials.program->check(arguments_of(trials, row.settings)); }) {
        report.set("rank_by", trials.ranking.json());
        report.set("summary",
                   cat(trials.table.size(), " trials of ", trials.program->name, ", each on ", trials.ranks_each,
                       trials.ranks_each == 1 ? " rank" : " ranks", ", ranked by ", trials.ranking.name));
    }
    RunFolder& folder;
    const Trials& trials;
    std::vector<TrialRow> rows;
    TrialsReport report;
    const TrialRow* ended_by = nullptr; // the trial that has ended the sweep by --until, if any
};

/// Prints which trial has ended the sweep by --until, if one has. Then prints the trials that have begun: those with a
/// value of the ranking metric, best first, and then the others.
void print_best_first(const TrialsRun& run, std::ostream& out) {
    const Ranking& ranking = run.trials.ranking;
    if (run.ended_by)
        out << "\ntrial " << run.ended_by->number
            << " has ended the sweep: " << run.trials.rules.sweep_end_reason(run.ended_by->last)
            << "; to continue, --resume with another --until\n";
    const std::set<std::string> differing = differing_settings(run.rows);
    const std::vector<const TrialRow*> best = best_first(run.rows, ranking);
    out << (best.empty() ? "\nexpected trials with the metric " : "\nbest first, by ") << ranking.name
        << (best.empty() ? ", got none:\n" : ":\n");
    const auto print = [&](const TrialRow& row) {
        out << wrapped(trial_line(row, ranking, differing), size_t(screen_size().columns)) << "\n";
    };
    for (const TrialRow* row : best) print(*row);
    for (const TrialRow& row : run.rows)
        if (row.state != "queued" && std::find(best.begin(), best.end(), &row) == best.end()) print(row);
}

/// Tests the best trial on the test set, which no trial has seen. If the data have no test set of their own, holds out
/// the same images for it as the trial did, by its --seed. `stopped`: a person has stopped the sweep.
void test_best(TrialsRun& run, bool stopped, std::ostream& out) {
    const Ranking& ranking = run.trials.ranking;
    const std::string folder = run.folder.path();
    if (const std::vector<const TrialRow*> best = best_first(run.rows, ranking); !best.empty()) {
        const TrialRow& row = *best.front();
        const std::string model = folder + "/" + row.folder;
        par::SingleLink link;
        par::Group alone(link);
        // The trials are ranked by their last epoch, so test the network of that epoch, not the one of the best epoch.
        // The data may have moved since the trial ran.
        const Json now = run.trials.program->check(arguments_of(run.trials, row.settings));
        Json data = Json::object();
        std::error_code none;
        for (const char* const name : {"data", "test-data"})
            if (const Json* const path = now.find(name); path && fs::exists(path->as_string(), none))
                data.set(name, *path);
        if (const Json* const cache = now.find("cache")) data.set("cache", *cache);
        const TestResult result = run.trials.program->test_run(alone, model + "/model.safetensors", data);
        Json summary = Json::object().set("trial", row.number).set(ranking.name, *value_of(row.last, ranking.name));
        for (const auto& [name, value] : result.values.as_object()) summary.set(name, value);
        for (const auto& [member, value] : result.report.as_object()) run.report.set(member, value);
        out << "\nbest" << (stopped ? " so far" : "") << ": trial " << row.number << " ("
            << printable(settings_text(row.settings)) << "), on the test set: " << result.text << "\n";
        for (const auto& [name, text, csv] : result.tables) {
            write_file_atomic(cat(folder, "/", name, ".csv"), csv);
            if (!text.empty()) out << text << "\n";
        }
        write_file_atomic(folder + "/best.json", summary.set("folder", model).dump(2) + "\n");
    }
    run.report.write(stopped ? "stopped" : "done");
    out << "results: " << printable(folder) << "/results.csv\nreport: " << printable(folder) << "/report.html"
        << std::endl;
}

/// Copies the state of a task that has started or ended to the row of its trial.
void update_row(TrialRow& row, const par::TaskRecord& task) {
    const bool cancelled = task.state == par::TaskState::cancelled;
    row.ranks = task.ranks;
    row.seconds = task.seconds;
    row.state = par::name_of(task.state);
    row.note = task.error;
    if (task.output.is_object()) {
        row.last = task.output.at("last");
        row.note = task.output.at("stopped").as_string();
    }
    // A trial that is cancelled in its last epoch may be complete.
    const bool stopped = task.output.is_object() ? !row.note.empty() : cancelled;
    if (stopped && !task.cancel_reason.empty()) row.note = task.cancel_reason;
    if (stopped || cancelled) row.state = stopped ? "stopped" : "finished";
    if (task.from_journal) row.note += row.note.empty() ? "done before" : "; done before";
}

/// Runs on rank 0 while all ranks train: submits the trials to the pool, shows their progress, and stops trials.
void control_trials(par::TaskPool& pool, TrialsRun& run) {
    const Trials& trials = run.trials;
    std::vector<TrialRow>& rows = run.rows;
    std::optional<TrialsBoard> board;
    if (trials.progress != ProgressKind::none)
        board.emplace(rows, trials.ranking, std::cout, style_of(trials.progress));
    double control_read_at = 0;
    std::string control_seen;
    bool interrupted = false;
    const auto check_stop_requests = [&] {
        if (run.folder.take_stop_request()) request_stop(); // unlike a second Ctrl-C, a second file does not kill
        if (stop_requested() && !std::exchange(interrupted, true)) pool.interrupt();
    };
    const auto check_until = [&](const TrialRow& row) {
        if (!run.ended_by && row.state != "failed" && !trials.rules.sweep_end_reason(row.last).empty())
            run.ended_by = &row, pool.interrupt();
    };
    if (trials.parallel) pool.set_ranks(trials.ranks); // else a trial has all ranks; its Compute chooses among them
    TrialComparison comparison(trials.rules, trials.ranking);
    if (trials.resume)
        for (const TrialRow& row : rows)
            for_each_epoch(run.folder.path() + "/" + row.folder,
                           [&](const Json& line) { (void)comparison.add(row.number, line); });
    run.report.write("running");
    const auto row_of = [&](const par::TaskRecord& task) -> TrialRow& { return rows[size_t(task.id) - 1]; };
    pool.on_report([&](const par::TaskRecord& task, const Json& line) {
        if (line.find("stop")) request_stop();
        if (line.find("stop")) return check_stop_requests();
        run.folder.check_in_place();
        TrialRow& row = row_of(task);
        row.live = line;
        const bool epoch = is_epoch(line);
        if (epoch) {
            row.last = line;
            const std::string worse = comparison.add(row.number, line);
            if (!worse.empty()) pool.cancel(task.id, worse);
        }
        if (board) board->update(row, epoch);
        epoch ? run.report.update(row) : run.report.write_if_due();
        check_stop_requests();
        if (const double now = seconds_now(); now - control_read_at > kControlSeconds) {
            control_read_at = now;
            read_control(pool, run.folder.path() + "/control", rows.size(), control_seen);
        }
    });
    pool.on_change([&](const par::TaskRecord& task) {
        run.folder.check_in_place(); // throws if the folder was deleted: the trials then fail for that reason alone
        const bool cut_short = task.state == par::TaskState::cancelled || task.state == par::TaskState::failed;
        // --resume runs such a trial again
        const bool requeued = (stop_requested() || run.ended_by) && cut_short && !task.from_journal;
        if (requeued && task.ranks.empty()) return; // not begun: its row stays queued
        TrialRow& row = row_of(task);
        update_row(row, task);
        if (requeued) row.state = "queued", row.note.clear();
        if (board) board->update(row, true);
        run.report.update(row);
        check_stop_requests();
        check_until(row);
    });
    for (const TrialRow& row : rows) check_until(row);
    for (const TrialRow& row : rows) { // the first tasks of the pool, so a task's id is its trial's number
        const Json args = Json::object()
                              .set("trial", row.number)
                              .set("settings", settings_text(row.settings))
                              .set("options", trials.program->check_fixed(arguments_of(trials, row.settings)));
        pool.submit("trial", args, trials.ranks_each);
    }
    pool.fetch_outputs();
    pool.on_report({});
    pool.on_change({});
    run.report.write(stop_requested() ? "stopped" : "done");
}

/// Returns the path of tools/monitor in the installation or the source folder to which this program belongs, or "" if
/// there is no such file.
std::string monitor_path() {
    std::error_code none;
    const fs::path folder = fs::read_symlink("/proc/self/exe", none).parent_path();
    for (const char* const path : {"../share/ringgrad/tools/monitor", "../tools/monitor"})
        if (fs::exists(folder / path, none)) return (folder / path).lexically_normal().string();
    return "";
}

/// Creates the folder of a new run, or opens that of the resumed run. A resumed run must begin with the same trials,
/// since none of them can continue with other settings. New trials may follow. The data and the files of initial values
/// must be the same.
RunFolder open_folder(const std::string& program, const Trials& trials, const std::vector<std::string>& typed,
                      int ranks, const Options& options) {
    RunFolder folder = trials.resume ? RunFolder::open(trials.runs, program, trials.run_name)
                                     : RunFolder::create(trials.runs, program, trials.run_name);
    folder.lock();
    Json config = trials.resume ? Json::parse(read_file(folder.config_path()), folder.config_path())
                                : Json::object()
                                      .set("program", program)
                                      .set("version", kVersion)
                                      .set("ranks", ranks)
                                      .set("options", options.to_json())
                                      .set("trials", Json::array());
    Json table = Json::array();
    for (const TrialSettings& settings : trials.table) table.push(settings_text(settings));
    const Json::Array &old_trials = config.at("trials").as_array(), &new_trials = table.as_array();
    for (size_t i = 0; i < old_trials.size(); ++i)
        RG_CHECK(i < new_trials.size() && new_trials[i] == old_trials[i], program, ": --resume: expected trial ", i + 1,
                 " as in ", folder.path(), ", ", old_trials[i].as_string(), ", got ",
                 i < new_trials.size() ? new_trials[i].as_string() : "none",
                 "; append new trials after the old ones, or start a new run");
    Json fingerprints = config.find("fingerprints") ? config.at("fingerprints") : Json::object();
    for (const auto& [part, text] : trials.fingerprints.as_object()) {
        const Json* const was = fingerprints.find(part);
        RG_CHECK(!was || *was == text, program, ": --resume: expected the ", part, " as when ", folder.path(),
                 " began, ", was->as_string(), ", got ", text.as_string(),
                 "; give the same files, or start a new run, so that all trials are compared on the same data");
        fingerprints.set(part, text);
    }
    // Those of the first trial, since all trials have the same options except for those of the table.
    const Json fixed = trials.program->check_fixed(arguments_of(trials, trials.table[0]));
    if (const Json* const old = config.find("fixed"))
        for (const auto& [name, value] : fixed.as_object())
            if (const Json* const was = old->find(name); name != "epochs" && name != "steps")
                RG_CHECK(!was || *was == value, program, ": --resume: expected --", name, " ", was->as_string(),
                         " as when ", folder.path(), " began, got ", value.as_string(),
                         "; omit the option, or start a new run, so that all trials are compared");
    std::vector<std::string> arguments = typed; // with those of this --resume, for the next one
    std::erase(arguments, "--resume");
    config.set("arguments", Json::of_texts(arguments));
    folder.write_config(config.set("trials", table).set("fingerprints", fingerprints).set("fixed", fixed));
    fs::create_directory(folder.path() + "/trials");
    return folder;
}

int run_trials(par::Group& group, const Program& program, const std::string& command,
               const TrialsArguments& arguments) {
    const std::string name = cat(program.name, "-sweep"); // of the run
    Trials trials;
    trials.base = {kDefaultValidation};
    trials.program = &program;
    Options options(command, cat("sweeps: ", program.description));
    options.add_examples({cat(program.examples[0], " --grid lr=0.01,0.05 --grid seed=1:3"),
                          cat(program.examples[0], " --random 20 --grid lr=log:0.001:1 --stop-below halving")},
                         "mpiexec -n 4 ");
    declare(options, trials);
    options.pass_on(&trials.base, cat("option of the training program, for all trials; the default is ",
                                      kDefaultValidation, ", and --validation must not be 0"));
    if (!options.parse(arguments.texts)) return options.print_help_or_version(group.rank() == 0);
    if (trials.resume && !arguments.resumed)
        return run_trials(group, program, command, arguments_to_resume(name, trials, arguments.texts));
    trials.rules.set_below(trials.stop_below);
    trials.table = make_table(trials);
    std::vector<std::string> rows;
    for (const TrialSettings& settings : trials.table) rows.push_back(settings_text(settings));
    install_stop_signals();
    par::verify_same(group, "arguments", arguments.texts, "start all ranks with the same options");
    par::verify_same(group, "trials", rows, "every rank needs the same --table");
    try {
        check_trials(group, command, trials, arguments.stored_in);
    } catch (const Stopped&) {
        return stopped_while_loading(group);
    }

    std::optional<RunFolder> folder; // on rank 0 only
    if (group.rank() == 0) folder.emplace(open_folder(name, trials, arguments.texts, group.size(), options));
    const std::string runs = group.allgather(folder ? folder->path() + "/trials" : "", "folder").front();
    const par::TaskTable tasks{
        {"trial", [&](par::TaskContext& task, const Json& args) { return run_trial(task, args, runs, trials); }}};
    std::ostream out(trials.progress == ProgressKind::none ? nullptr : std::cout.rdbuf());
    if (const std::string monitor = monitor_path(); folder && !monitor.empty())
        out << "watch: " << printable(shell_word(monitor)) << " --runs "
            << printable(shell_word(fs::path(folder->path()).parent_path().string())) << std::endl;
    if (folder && trials.ranks.size() < size_t(group.size()))
        out << trials.ranks.size() << " of " << group.size()
            << " ranks train; the rest is idle, without a GPU of its own" << std::endl;
    std::optional<TrialsRun> run; // on rank 0 only
    const auto control = [&](par::TaskPool& pool) { control_trials(pool, run.emplace(*folder, trials)); };
    par::run_task_pool(group.link(), tasks, control, folder ? folder->path() + "/journal.jsonl" : "");
    const bool by_person = exit_code_after_stop(group) == 0; // else there may be little time left
    // While this runs on rank 0, all ranks exchange messages. Otherwise rank 0 might be silent for so long that the
    // other ranks would take it as failed.
    run_while_polling(group, name, [&] {
        if (!run) return;
        const bool stopped = stop_requested();
        const std::string how_to_go_on = cat("stopped; continue with --resume; ", printable(folder->path()));
        try {
            if (stopped && by_person) {
                out << "\nstopped; testing the best trial so far on the test set (Ctrl-C: leave this out)" << std::endl;
                withdraw_stop();
                install_stop_signals(); // the next Ctrl-C must not kill
            }
            check_stop();
            print_best_first(*run, out);
            test_best(*run, stopped, out);
            if (stopped) out << how_to_go_on << std::endl;
        } catch (const Stopped&) {
            out << how_to_go_on << std::endl;
        }
    });
    return exit_code_after_stop(group);
}

} // namespace

int sweep_command(par::Group& group, const Program& program, const std::string& name,
                  const std::vector<std::string>& args) {
    return run_trials(group, program, name, {.texts = args});
}

} // namespace rg
