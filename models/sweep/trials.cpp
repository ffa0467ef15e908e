// See trials.h. This file begins with the code of one trial, which runs on the trial's ranks. The checks before all
// trials follow, then the command line, and then the controller on rank 0.
#include "ringgrad/models/sweep/trials.h"

#include "ringgrad/core/atomic_file.h"
#include "ringgrad/core/clock.h"
#include "ringgrad/core/safetensors.h"
#include "ringgrad/core/text.h"
#include "ringgrad/core/version.h"
#include "ringgrad/data/command.h"
#include "ringgrad/models/run/collective.h"
#include "ringgrad/models/run/machine.h"
#include "ringgrad/models/run/signals.h"
#include "ringgrad/models/sweep/trials_board.h"
#include "ringgrad/par/session.h"
#include "ringgrad/par/verify.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <set>

namespace fs = std::filesystem;

namespace rg {
namespace {

constexpr double kControlSeconds = 0.25;

/// Returns true for the line of an epoch. Lines of steps also have "step", and other lines have no "epoch".
bool is_epoch(const Json& line) { return line.find("epoch") && !line.find("step"); }

/// Returns true if a run has a complete checkpoint. A kill may leave an incomplete one with another ending.
bool has_checkpoint(const std::string& run) {
    std::error_code none;
    for (const fs::directory_entry& file : fs::directory_iterator(run + "/checkpoint", none))
        if (file.path().extension() == ".safetensors") return true;
    return false;
}

/// Calls `use` with the line of each epoch in the metrics of a run. Ends at the first damaged one, and does nothing if
/// the file cannot be read.
void for_each_epoch(const std::string& run, const std::function<void(const Json&)>& use) try {
    std::ifstream file(run + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);)
        if (line.starts_with("{\"epoch\"")) use(Json::parse(line, run));
} catch (const Error&) {}

/// Returns the line of the last epoch in the metrics of a run, or null if there is none or the file cannot be read. The
/// reports of this process are not enough: a resumed trial may end before it finishes another epoch.
Json last_epoch(const std::string& run) {
    Json last;
    for_each_epoch(run, [&](const Json& epoch) { last = epoch; });
    return last;
}

std::vector<std::string> texts_of(const Json& list) {
    std::vector<std::string> texts;
    for (const Json& text : list.as_array()) texts.push_back(text.as_string());
    return texts;
}

/// Returns the arguments without --init, which programs refuse with --resume.
std::vector<std::string> without_init(const std::vector<std::string>& arguments) {
    std::vector<std::string> kept;
    for (size_t i = 0; i < arguments.size(); ++i) {
        if (arguments[i] == "--init")
            ++i; // also omit its value
        else if (!arguments[i].starts_with("--init="))
            kept.push_back(arguments[i]);
    }
    return kept;
}

/// Connects a training with the pool: passes on its reports, and stops it by rules of fixed values or on request.
class PooledTrial final : public Trial {
public:
    PooledTrial(par::TaskContext& task, const Trials& trials) : task_(task), trials_(trials) {}
    bool standalone() const override { return false; }
    bool report(const Json& line) override {
        task_.report(line);
        if (is_epoch(line) && stop_reason_.empty()) stop_reason_ = trials_.rules.reason(line, trials_.ranking);
        if (stop_reason_.empty() && task_.cancelled()) stop_reason_ = "on request";
        return !stop_reason_.empty();
    }
    void end(bool stopped) override {
        complete_ = !stopped;
        if (stopped && stop_reason_.empty()) stop_reason_ = "on request";
    }
    void pulse() override { (void)task_.cancelled(); }
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
/// journal identifies a trial by `args`. So `args` has neither the folder nor the stop rules, which may change.
Json run_trial(par::TaskContext& task, const Json& args, const std::string& runs, const Trials& trials) {
    par::Group& group = task.group();
    const std::string& name = args.at("name").as_string();
    const std::string folder = runs + "/" + name;
    std::error_code none;
    RG_CHECK(group.rank() != 0 || fs::is_directory(runs, none), "trial: expected the folder ", runs,
             ", got none; it was deleted or renamed");
    const bool resumes = group.all(has_checkpoint(folder), "checkpoint");
    std::vector<std::string> arguments = texts_of(args.at("arguments"));
    if (resumes) {
        arguments = without_init(arguments);
        arguments.push_back("--resume");
    } else if (group.rank() == 0) {
        fs::remove_all(folder, none);
    }
    group.barrier("folder");
    arguments.push_back("--runs=" + runs);
    arguments.push_back("--run-name=" + name);
    PooledTrial trial(task, trials);
    const int code = trials.program->run(group, arguments, trial);
    RG_CHECK(code == 0, "trial: expected exit code 0, got ", code);
    if (group.rank() != 0) return {};
    RG_CHECK(trial.complete() || !stop_requested(), "interrupted"); // fails the task, so --resume runs it again
    const std::string reason = trial.complete() ? "" : trial.stop_reason();
    return Json::object().set("last", last_epoch(folder)).set("stopped", reason);
}

/// Reads the complete lines of a control file from the byte `begin` on, and cancels trial N for each line "stop N".
/// Moves `begin` to the end of these lines.
void read_control(par::TaskPool& pool, const std::string& path, size_t trials, size_t& begin) {
    std::error_code none;
    if (!fs::exists(path, none)) return;
    const std::string text = read_file(path);
    for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
        if (text.compare(begin, 5, "stop ") != 0) continue;
        int64_t number = 0;
        std::from_chars(text.data() + begin + 5, text.data() + end, number);
        if (number >= 1 && number <= int64_t(trials)) pool.cancel(number, "on request");
    }
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

/// Throws Error if an argument of a trial is an option that only makes sense for a single training.
void check_arguments(const std::string& name, const Trials& trials, const std::vector<std::string>& arguments,
                     size_t trial) {
    static const std::map<std::string, const char*> kReasons = {
        {"run-name", "the name of a trial is its number"},
        {"runs", "a trial is a subfolder of its run"},
        {"resume", "--resume is for all trials together"},
        {"compare", "a trial is trained once"},
        {"plan-dump", "a trial prints nothing"},
        {"profile", "a trial prints nothing"},
        {"progress", "a trial prints nothing"},
        {"no-report", "the report of the trials is made from theirs"},
        {"help", "a trial prints nothing"},
        {"help-all", "a trial prints nothing"},
    };
    for (const std::string& argument : arguments) {
        if (!argument.starts_with("--")) continue;
        const auto reason = kReasons.find(argument.substr(2, argument.find('=') - 2));
        RG_CHECK(reason == kReasons.end(), name, ": expected options for trials, got ", argument, " (trial ", trial,
                 "); ", reason->second, "; use this option with ", trials.program->name, " instead");
    }
}

/// Collective. Throws Error if the device or the precision in a trial's options is not available.
void check_machine(par::Group& group, const Json& trial) {
    MachineOptions settings;
    Options options("", "");
    settings.declare(options);
    for (const char* name : {"device", "gpus", "precision"}) options.set(name, trial.at(name).as_string());
    const Machine machine(settings, options, group);
}

/// Collective. Throws Error if an option of a trial is wrong; see run_trials_main(). Sets the ranking. `stored_in` is
/// that of TrialsArguments.
void check_trials(par::Group& group, const std::string& name, Trials& trials, const std::string& stored_in) {
    std::vector<std::vector<std::string>> arguments;
    std::vector<Json> options;
    for (const TrialSettings& settings : trials.table) {
        arguments.push_back(arguments_of(trials, settings));
        check_arguments(name, trials, arguments.back(), arguments.size());
        options.push_back(trials.program->check(arguments.back()));
        RG_CHECK(options.back().at("validation").as_double() > 0, name,
                 ": expected a --validation above 0, got 0 (trial ", options.size(),
                 "); trials are ranked on their validation sets; to train on all images, use ", trials.program->name);
        // Check the parsed values, since the text of an argument can spell the same command in many ways.
        for (const char* const source : {"data", "test-data"})
            if (!stored_in.empty())
                check_stored_command(stored_in, options.back().at(source).as_string(),
                                     "type the options of this run again before --resume");
    }
    std::set<std::string> checked;
    for (size_t i = 0; i < options.size(); ++i) {
        const auto is_new = [&](std::initializer_list<const char*> names) {
            std::string key;
            for (const char* option : names) key += cat(option, " ", options[i].at(option).dump(), "\n");
            return checked.insert(key).second;
        };
        if (is_new({"device", "gpus", "precision"})) check_machine(group, options[i]);
        const std::string& init = options[i].at("init").as_string();
        if (!init.empty() && !trials.resume && is_new({"init"})) load_tensors(init); // most resumed trials need none
        if (!is_new({"data", "test-data", "size", "validation", "skip-other-images", "label-from"})) continue;
        const Program::DataCheck found = trials.program->check_data(group, arguments[i]);
        trials.ranking = ranking_by(trials.rank_by, found.metrics);
        for (const std::string& warning : found.warnings)
            if (group.rank() == 0) std::cerr << printable(warning) << "\n";
    }
}

} // namespace

std::vector<std::string> arguments_of(const Trials& trials, const TrialSettings& settings) {
    std::vector<std::string> args = trials.base;
    for (const std::string& arg : arguments_of(settings)) args.push_back(arg);
    return args;
}

TrialsRun::TrialsRun(RunFolder& folder, const Trials& trials)
    : folder(folder),
      trials(trials),
      rows(rows_of(trials, folder.path())),
      report(folder.path(), rows, trials.ranking,
             [&trials](const TrialRow& row) { return trials.program->check(arguments_of(trials, row.settings)); }) {
    report.set("rank_by", trials.ranking.json());
    report.set("summary", cat(trials.table.size(), " trials of ", trials.program->name, ", each on ", trials.ranks_each,
                              trials.ranks_each == 1 ? " rank" : " ranks", ", ranked by ", trials.ranking.name));
}

namespace {

/// The command line of a program of trials.
struct TrialsArguments {
    std::vector<std::string> texts = {}; // the arguments
    bool resumed = false;                // true if `texts` begins with the arguments of the resumed run
    // The folder of the resumed run, if some arguments come only from its config.json. Empty if all were typed.
    std::string stored_in = {};
};

/// The first default argument of all trials, so that each has a validation set by default.
constexpr const char* kDefaultValidation = "--validation=0.1";

/// Declares the options of a program `p` that runs trials. Their values go to `s`. If `p` has several training
/// programs, also declares --program, whose value goes to `program`.
void declare(Options& o, const TrialsProgram& p, Trials& s, std::string& program) {
    o.group("Trials");
    if (p.programs.size() > 1) {
        std::vector<std::string> names;
        for (const Program* training : p.programs) names.push_back(training->name);
        o.add("program", &program, "training program").one_of(names).basic();
    }
    o.add("table", &s.table_file, "CSV file with option names in the first line and a trial in each following line")
        .metavar("FILE")
        .basic();
    o.add("grid", &s.grid,
          cat("option and its values, for example seed=1:4, lr=0.01,0.05 or 'drops=\"20,40\",30', or with --random a "
              "range, lr=log:1e-3:1 or l2=linear:0:0.01; seed=1:4 is 1, 2, 3 and 4; several --grid make all "
              "combinations; with --table, every row "
              "of the table is combined with every point of the grid",
              p.default_grid.empty() ? "" : "; without either: " + p.default_grid.front()))
        .metavar("NAME=VALUES")
        .basic();
    o.add("random", &s.random,
          "draw this many different points at random from --grid, instead of all combinations; 0: all combinations")
        .range(0, double(kMaxTrials))
        .basic();
    o.add("at-once", &s.parallel,
          "run trials in parallel; off: one after the other, each on all ranks, whatever --ranks-per-trial");
    o.add("rank-by", &s.rank_by,
          "metric of an epoch, as in metrics.jsonl, that ranks the trials, such as validation_loss (default: the main "
          "metric of the training, on the validation set)")
        .metavar("METRIC")
        .basic();
    o.add("ranks-per-trial", &s.ranks_per_trial, "number of ranks for each trial").range(1, 1e6).basic();
    o.add(
         "stop-below", &s.stop_below,
         "stop bad trials; X: those whose --rank-by is worse than X, in percent for accuracies; median: those whose "
         "best --rank-by is worse than the median of the others after as many epochs; halving: those not in the better "
         "half after N, "
         "2 N, 4 N ... epochs, with N from --stop-below-after; 0: none; median and halving wait for three other trials")
        .metavar("X|median|halving")
        .basic();
    o.add("stop-below-after", &s.rules.after, "first epoch after which --stop-below is checked").range(1, 1e6);
    o.add("target", &s.rules.target,
          "stop a trial whose --rank-by has reached this value, in percent for accuracies; 0: off")
        .at_least(0);
    o.group("Run");
    o.add("runs", &s.runs, "folder of all runs").metavar("DIR");
    o.add("run-name", &s.run_name, "name of this run's folder (default: program name and start time)")
        .metavar("NAME")
        .basic();
    declare_progress(o, &s.progress);
    o.add("resume", &s.resume, "continue --run-name with its options; finished trials are not run again").basic();
}

/// Returns the --seed in the arguments of all trials, or its default. It is 0 if the program has no such option.
uint64_t seed_of(const Trials& s) {
    const Json options = s.program->check(s.base);
    const Json* const seed = options.find("seed");
    return seed ? uint64_t(seed->as_int()) : 0;
}

/// Returns the trials. Throws Error if the options define none or more than kMaxTrials, or if an option is both in the
/// table and in the grid.
std::vector<TrialSettings> make_table(const TrialsProgram& p, const Trials& s) {
    const std::vector<std::string>& grid = s.grid.empty() && s.table_file.empty() ? p.default_grid : s.grid;
    RG_CHECK(!s.table_file.empty() || !grid.empty(), p.name,
             ": expected --table or --grid, got neither; give at least one");
    std::vector<TrialSettings> rows = s.table_file.empty() ? std::vector<TrialSettings>(1) : read_trials(s.table_file);
    RG_CHECK(s.random == 0 || !grid.empty(), p.name, ": expected --grid with --random, got none; omit --random");
    const std::vector<TrialSettings> points =
        s.random > 0 ? random_trials(grid, s.random, seed_of(s)) : trial_grid(grid);
    RG_CHECK(rows.size() * points.size() <= kMaxTrials, p.name, ": expected at most ", kMaxTrials, " trials, got ",
             rows.size() * points.size(), " (", rows.size(), " of the table times ", points.size(),
             " of the grid); shorten --table or --grid");
    std::vector<TrialSettings> all;
    for (const TrialSettings& row : rows)
        for (const TrialSettings& point : points) {
            for (const auto& setting : point)
                RG_CHECK(std::none_of(row.begin(), row.end(),
                                      [&](const auto& other) { return other.first == setting.first; }),
                         p.name, ": expected ", setting.first, " in --table or in --grid, got it in both; remove one");
            all.push_back(row);
            all.back().insert(all.back().end(), point.begin(), point.end());
            if (p.adjust) p.adjust(s, all.back());
        }
    return all;
}

/// Prints the trials that have begun, those with the metric that ranks first.
void print_best_first(const TrialsRun& run, std::ostream& out) {
    const Ranking& ranking = run.trials.ranking;
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

/// Tests the best trial on the test set, which no trial has seen. If the data have no test set of their own, it is held
/// out by the trial's --seed, as it was from the trial. `stopped`: a person has stopped the sweep.
void test_best(TrialsRun& run, bool stopped, std::ostream& out) {
    const Ranking& ranking = run.trials.ranking;
    const std::string folder = run.folder.path();
    if (const std::vector<const TrialRow*> best = best_first(run.rows, ranking); !best.empty()) {
        const TrialRow& row = *best.front();
        const std::string model = folder + "/" + row.folder;
        par::SingleLink link;
        par::Group alone(link);
        const TestResult result = run.trials.program->test(alone, arguments_of(run.trials, row.settings), model);
        Json summary = Json::object().set("trial", row.number).set(ranking.name, *value_of(row.last, ranking.name));
        for (const auto& [name, value] : result.values.as_object()) summary.set(name, value);
        for (const auto& [member, value] : result.report.as_object()) run.report.set(member, value);
        out << "\nbest" << (stopped ? " so far" : "") << ": trial " << row.number << " ("
            << printable(settings_text(row.settings)) << "), on the test set: " << result.text << "\n";
        for (const auto& [member, table] : result.tables) {
            write_file_atomic(cat(folder, "/", member, ".csv"), table.csv);
            out << table.text << "\n";
        }
        write_file_atomic(folder + "/best.json", summary.set("folder", model).dump(2) + "\n");
    }
    run.report.write(stopped ? "stopped" : "done");
    out << "results: " << printable(folder) << "/results.csv\nreport: " << printable(folder) << "/report.html"
        << std::endl;
}

/// Returns the arguments of the run to resume, followed by the `typed` ones and --resume. If `typed` begins with the
/// arguments of the run, does not add these twice. Throws Error if there is no --run-name or no such run, or if `typed`
/// adds --init.
TrialsArguments arguments_to_resume(const std::string& program, const Trials& s,
                                    const std::vector<std::string>& typed) {
    RG_CHECK(!s.run_name.empty(), program, ": expected --run-name with --resume, got none; name the run to continue");
    const RunFolder folder = RunFolder::open(s.runs, program, s.run_name);
    const std::string path = folder.config_path();
    const Json config = Json::parse(read_file(path), path);
    RG_CHECK(config.at("program").as_string() == program, path, ": expected a run of ", program, ", got one of ",
             config.at("program").as_string());
    std::vector<std::string> arguments = texts_of(config.at("arguments"));
    // If the user repeats the command of the run, drop the repeated part: list options would get their values twice.
    std::vector<std::string> added = typed;
    std::erase(added, "--resume");
    const bool repeated =
        std::mismatch(arguments.begin(), arguments.end(), added.begin(), added.end()).first == arguments.end();
    if (repeated) added.erase(added.begin(), added.begin() + ptrdiff_t(arguments.size()));
    RG_CHECK(without_init(added) == added, program,
             ": expected --init (starts a new run) or --resume (continues a run), got both; omit one");
    arguments.insert(arguments.end(), added.begin(), added.end());
    arguments.push_back("--resume");
    return {arguments, true, repeated ? "" : folder.path()};
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

/// Submits all trials as the first tasks of the pool, so a task's id is its trial's number.
void submit_trials(par::TaskPool& pool, const TrialsRun& run) {
    for (const TrialRow& row : run.rows) {
        const std::vector<std::string> args = arguments_of(run.trials, row.settings);
        pool.submit("trial",
                    Json::object()
                        .set("program", run.trials.program->name)
                        .set("arguments", Json(Json::Array(args.begin(), args.end())))
                        .set("name", cat(row.number)),
                    run.trials.ranks_each);
    }
}

/// Controls the pool on rank 0, while all ranks train.
void control_trials(par::TaskPool& pool, TrialsRun& run) {
    const Trials& trials = run.trials;
    std::vector<TrialRow>& rows = run.rows;
    std::optional<TrialsBoard> board;
    if (trials.progress != ProgressKind::none) board.emplace(rows, trials.ranking, trials.progress);
    double control_read_at = 0;
    size_t control_bytes_read = 0;
    bool interrupted = false;
    const auto check_stop_requests = [&] {
        if (run.folder.take_stop_request()) std::raise(SIGINT); // a file "stop" has the same effect as Ctrl-C
        if (stop_requested() && !std::exchange(interrupted, true)) pool.interrupt();
    };
    TrialComparison comparison(trials.rules, trials.ranking);
    if (trials.resume)
        for (const TrialRow& row : rows)
            for_each_epoch(run.folder.path() + "/" + row.folder,
                           [&](const Json& line) { (void)comparison.add(row.number, line); });
    run.report.write("running");
    const auto row_of = [&](const par::TaskRecord& task) -> TrialRow& { return rows[size_t(task.id) - 1]; };
    pool.on_report([&](const par::TaskRecord& task, const Json& line) {
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
            read_control(pool, run.folder.path() + "/control", rows.size(), control_bytes_read);
        }
    });
    pool.on_change([&](const par::TaskRecord& task) {
        run.folder.check_in_place(); // throws if the folder was deleted: the trials then fail for that reason alone
        const bool cut_short = task.state == par::TaskState::cancelled || task.state == par::TaskState::failed;
        const bool requeued = stop_requested() && cut_short && !task.from_journal; // --resume runs such a trial again
        if (requeued && task.ranks.empty()) return;                                // not begun: its row stays queued
        TrialRow& row = row_of(task);
        update_row(row, task);
        if (requeued) row.state = "queued", row.note.clear();
        if (board) board->update(row, true);
        run.report.update(row);
        check_stop_requests();
    });
    submit_trials(pool, run);
    pool.fetch_outputs();
    pool.on_report({});
    pool.on_change({});
    run.report.write(stop_requested() ? "stopped" : "done");
}

/// Returns the path of tools/monitor of this installation or of the source folder, or "tools/monitor" if neither is
/// where it is by default.
std::string monitor_path() {
    const fs::path folder = fs::path(program_path()).parent_path();
    for (const char* const path : {"../share/ringgrad/tools/monitor", "../tools/monitor"})
        if (std::error_code none; fs::exists(folder / path, none)) return (folder / path).lexically_normal().string();
    return "tools/monitor";
}

/// Creates the folder of a new run, or opens that of the resumed run. A resumed run must begin with the same trials,
/// since none of them can continue with other settings. New trials may follow.
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
                                      .set("arguments", Json(Json::Array(typed.begin(), typed.end())))
                                      .set("options", options.to_json())
                                      .set("trials", Json::array());
    Json table = Json::array();
    for (const TrialSettings& settings : trials.table) table.push(settings_text(settings));
    const Json* const stored = config.find("trials");
    RG_CHECK(stored, program, ": --resume: expected the trials in ", folder.config_path(),
             ", got none; use the version that started this run");
    const Json::Array &old_trials = stored->as_array(), &new_trials = table.as_array();
    for (size_t i = 0; i < old_trials.size(); ++i)
        RG_CHECK(i < new_trials.size() && new_trials[i] == old_trials[i], program, ": --resume: expected trial ", i + 1,
                 " as in ", folder.path(), ", ", old_trials[i].as_string(), ", got ",
                 i < new_trials.size() ? new_trials[i].as_string() : "none",
                 "; append new trials after the old ones, or start a new run");
    folder.write_config(config.set("trials", table));
    fs::create_directory(folder.path() + "/trials");
    return folder;
}

int run_trials(par::Group& group, const TrialsProgram& program, const TrialsArguments& arguments) {
    Trials trials;
    trials.base = {kDefaultValidation};
    trials.base.insert(trials.base.end(), program.defaults.begin(), program.defaults.end());
    std::string training = program.programs.front()->name;
    Options options(program.name, program.description);
    options.examples({"--grid lr=0.01,0.05 --grid seed=1:3", "--random 20 --grid lr=log:0.001:1 --stop-below halving"},
                     "mpiexec -n 4 ");
    declare(options, program, trials, training);
    std::string defaults;
    for (const std::string& argument : trials.base) defaults += " " + argument;
    options.pass_on(&trials.base, cat("option of the training program, for all trials; the defaults are", defaults,
                                      ", and --validation must not be 0"));
    if (!options.parse(arguments.texts)) {
        if (group.rank() == 0) std::cout << options.answer();
        return 0;
    }
    if (trials.resume && !arguments.resumed)
        return run_trials(group, program, arguments_to_resume(program.name, trials, arguments.texts));
    trials.ranks_each = trials.parallel ? int(trials.ranks_per_trial) : group.size();
    trials.program = *std::find_if(program.programs.begin(), program.programs.end(),
                                   [&](const Program* p) { return training == p->name; });
    trials.rules.set_below(trials.stop_below);
    trials.table = make_table(program, trials);
    RG_CHECK(trials.ranks_each <= group.size(), program.name, ": expected --ranks-per-trial of at most ", group.size(),
             ", the number of ranks of this job, got ", trials.ranks_each);
    install_stop_signals();
    verify_same_options(group, options);
    par::verify_same(group, "arguments", arguments.texts, "start all ranks with the same options");
    try {
        check_trials(group, program.name, trials, arguments.stored_in);
    } catch (const Stopped&) {
        return stopped_while_loading(group);
    }

    std::optional<RunFolder> folder; // on rank 0 only
    if (group.rank() == 0) folder.emplace(open_folder(program.name, trials, arguments.texts, group.size(), options));
    const std::string runs = group.allgather(folder ? folder->path() + "/trials" : "", "folder").front();
    const par::TaskTable tasks{
        {"trial", [&](par::TaskContext& task, const Json& args) { return run_trial(task, args, runs, trials); }}};
    std::ostream out(trials.progress == ProgressKind::none ? nullptr : std::cout.rdbuf());
    if (folder)
        out << "watch: " << printable(data::shell_word(monitor_path())) << " --runs "
            << printable(data::shell_word(fs::path(folder->path()).parent_path().string())) << std::endl;
    std::optional<TrialsRun> run; // on rank 0 only
    const auto control = [&](par::TaskPool& pool) { control_trials(pool, run.emplace(*folder, trials)); };
    par::run_task_pool(group.link(), tasks, control, folder ? folder->path() + "/journal.jsonl" : "");
    const bool by_person = stopped_exit_code(group) == 0; // else there may be little time left
    // While this runs on rank 0, all ranks exchange messages. Otherwise rank 0 might be silent for so long that the
    // other ranks would take it as failed.
    run_while_polling(group, program.name, [&] {
        if (!run) return;
        const bool stopped = stop_requested();
        const std::string how_to_go_on = cat("stopped; continue with --resume; ", printable(folder->path()));
        try {
            if (stopped && by_person) {
                out << "\nstopped; testing the best trial so far on the test set (Ctrl-C: leave this out)" << std::endl;
                withdraw_stop();
                install_stop_signals(); // the first Ctrl-C has restored the default action
            }
            check_stop();
            print_best_first(*run, out);
            test_best(*run, stopped, out);
            if (stopped) out << how_to_go_on << std::endl;
        } catch (const Stopped&) {
            out << how_to_go_on << std::endl;
        }
    });
    return stopped_exit_code(group);
}

} // namespace

int run_trials_main(int argc, char** argv, const TrialsProgram& program) {
    return par::run_ranks_main(argc, argv, [&](par::Group& group) {
        return run_trials(group, program, {.texts = {argv + 1, argv + argc}});
    });
}

} // namespace rg
