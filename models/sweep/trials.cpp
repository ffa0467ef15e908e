// A trial on the ranks that run it, and the controller, which shows and records what becomes of all of them.
#include "models/sweep/trials.h"

#include "core/atomic_file.h"
#include "core/safetensors.h"
#include "core/text.h"
#include "models/run/data_parallel.h"
#include "models/run/machine.h"
#include "models/run/signals.h"
#include "models/sweep/programs.h"
#include "models/sweep/trials_board.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <set>

namespace fs = std::filesystem;

namespace rg {
namespace {

constexpr double kControlSeconds = 0.25;

/// Whether a line of metrics is of an epoch: step lines have a step as well, and there are others.
bool is_epoch(const Json& line) { return line.find("epoch") && !line.find("step"); }

/// Whether a run has a checkpoint that was finished; a kill may leave one that was not.
bool has_checkpoint(const std::string& run) {
    std::error_code none;
    for (const fs::directory_entry& file : fs::directory_iterator(run + "/checkpoint", none))
        if (file.path().extension() == ".safetensors") return true;
    return false;
}

/// The last epoch's line in the metrics of a run; null if there is none. Not those of this job alone: a trial that goes
/// on at its end, or is stopped before the end of an epoch, has no others.
Json last_epoch(const std::string& run) try {
    const std::string path = run + "/metrics.jsonl", text = fs::exists(path) ? read_file(path) : "";
    for (size_t end = text.rfind('\n'); end != std::string::npos && end > 0;) {
        const size_t before = text.rfind('\n', end - 1), begin = before + 1; // of none: 0
        const Json line = Json::parse(std::string_view(text).substr(begin, end - begin), path);
        if (is_epoch(line)) return line;
        end = before;
    }
    return {};
} catch (const std::exception&) { // cut by a crash of the machine, or not to be seen from here: nothing to rely on
    return {};
}

/// The arguments of a run that goes on: programs refuse --init beside --resume, as its values are those of the start.
std::vector<std::string> without_init(const std::vector<std::string>& arguments) {
    std::vector<std::string> kept;
    for (size_t i = 0; i < arguments.size(); ++i) {
        if (arguments[i] == "--init")
            ++i; // with its value
        else if (!arguments[i].starts_with("--init="))
            kept.push_back(arguments[i]);
    }
    return kept;
}

/// A training that is a task of the pool.
class PooledTrial final : public Trial {
public:
    PooledTrial(par::TaskContext& task, const StopRules& rules) : task_(task), rules_(rules) {}
    bool alone() const override { return false; }
    bool report(const Json& line) override {
        task_.report(line);
        if (is_epoch(line)) judge(line);
        if (stopped_.empty() && task_.cancelled()) stopped_ = "on request";
        return !stopped_.empty();
    }
    void end(bool stopped) override {
        complete_ = !stopped;
        if (stopped && stopped_.empty()) stopped_ = "on request";
    }
    void pulse() override { (void)task_.cancelled(); }
    bool complete() const { return complete_; }
    const std::string& stopped() const { return stopped_; }

private:
    void judge(const Json& epoch) {
        const double reached = 100 * accuracy_of(epoch);
        if (reached < 0) return;
        if (rules_.target > 0 && reached >= rules_.target)
            stopped_ = cat("reached ", rules_.target, " %");
        else if (epoch.at("epoch").as_int() >= rules_.below_after && reached < rules_.below)
            stopped_ = cat("below ", rules_.below, " %");
    }

    par::TaskContext& task_;
    const StopRules& rules_;
    bool complete_ = false; // known on the group's first rank
    std::string stopped_;
};

/// The task. A trial that an earlier run has begun in the folder `runs` goes on from its last checkpoint, or begins
/// anew. `args` are what it is known by in the journal: they say what is trained, not where, nor until when.
Json run_trial(par::TaskContext& task, const Json& args, const std::string& runs, const StopRules& rules) {
    par::Group& group = task.group();
    const std::string& name = args.at("name").as_string();
    const std::string folder = runs + "/" + name;
    std::error_code none;
    RG_CHECK(group.rank() != 0 || fs::is_directory(runs, none), "trial: expected the folder ", runs,
             ", got none; it was deleted or renamed");
    const bool goes_on = group.all(has_checkpoint(folder), "checkpoint");
    std::vector<std::string> arguments;
    for (const Json& argument : args.at("arguments").as_array()) arguments.push_back(argument.as_string());
    if (goes_on) {
        arguments = without_init(arguments);
        arguments.push_back("--resume");
    } else if (group.rank() == 0) {
        fs::remove_all(folder, none);
    }
    group.barrier("folder");
    arguments.push_back("--runs=" + runs);
    arguments.push_back("--run-name=" + name);
    PooledTrial trial(task, rules);
    const int code = find_program(args.at("program").as_string()).run(group, arguments, trial);
    RG_CHECK(code == 0, "trial: expected exit code 0, got ", code);
    if (group.rank() != 0) return {};
    RG_CHECK(trial.complete() || !stop_requested(), "interrupted"); // the next run goes on with it
    return Json::object().set("last", last_epoch(folder)).set("stopped", trial.stopped());
}

/// The numbers in the lines "stop N" of a control file that were not there before.
class Control {
public:
    explicit Control(std::string path) : path_(std::move(path)) {}
    std::vector<int64_t> read() {
        std::vector<int64_t> numbers;
        std::error_code none;
        if (!fs::exists(path_, none)) return numbers;
        const std::string text = read_file(path_);
        for (size_t end; (end = text.find('\n', done_)) != std::string::npos; done_ = end + 1)
            if (text.compare(done_, 5, "stop ") == 0) numbers.push_back(std::atoll(text.c_str() + done_ + 5));
        return numbers;
    }

private:
    std::string path_;
    size_t done_ = 0; // bytes
};

/// As an earlier run in the folder has left them, if one has.
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

/// Throws if an option is none of a training that is one of many.
void check_arguments(const std::string& name, const Trials& trials, const std::vector<std::string>& arguments,
                     size_t trial) {
    static const std::map<std::string, const char*> kReasons = {
        {"run-name", "a trial is called by its number"},
        {"runs", "a trial lies in the folder of its run"},
        {"resume", "all trials go on, or none"},
        {"compare", "a trial is trained once"},
        {"plan-dump", "a trial prints nothing"},
        {"profile", "a trial prints nothing"},
        {"help", "a trial prints nothing"},
    };
    for (const std::string& argument : arguments) {
        if (!argument.starts_with("--")) continue;
        const auto reason = kReasons.find(argument.substr(2, argument.find('=') - 2));
        RG_CHECK(reason == kReasons.end(), name, ": expected options that a trial may have, got ", argument, " (trial ",
                 trial, "); ", reason->second, "; for that, start ", trials.program, " by itself");
    }
}

/// Throws if a trial of these options would not get the device and the precision that they ask for. Collective.
void check_machine(par::Group& group, const Json& trial) {
    MachineOptions settings;
    Options options("", "");
    settings.declare(options);
    for (const char* name : {"device", "precision"}) options.set(name, trial.at(name).as_string());
    const Machine machine(settings, options, group);
}

/// Throws what would fail in trial after trial. `stored_in`: see TrialsArguments. Collective.
void check_trials(par::Group& group, const std::string& name, const Trials& trials, bool resume,
                  const std::string& stored_in) {
    const Program& program = find_program(trials.program);
    std::vector<std::vector<std::string>> arguments;
    std::vector<Json> options;
    for (const Settings& settings : trials.table) {
        arguments.push_back(arguments_of(trials, settings));
        check_arguments(name, trials, arguments.back(), arguments.size());
        options.push_back(program.check(arguments.back()));
        RG_CHECK(options.back().at("validation").as_double() > 0, name,
                 ": expected a --validation above 0, got 0 (trial ", options.size(),
                 "); trials are ranked by validation accuracy, never by test accuracy; to train on all images, start ",
                 trials.program, " by itself");
        // Only here all quotes and lists are resolved: before, the same command has many spellings.
        if (!stored_in.empty())
            check_stored_command(stored_in, options.back().at("data").as_string(),
                                 "type the options of this run again before --resume");
    }
    std::set<std::string> read;
    for (size_t i = 0; i < options.size(); ++i) {
        const auto is_new = [&](std::initializer_list<const char*> names) {
            std::string key;
            for (const char* option : names) key += cat(option, " ", options[i].at(option).dump(), "\n");
            return read.insert(key).second;
        };
        if (is_new({"device", "precision"})) check_machine(group, options[i]);
        const std::string& init = options[i].at("init").as_string();
        if (!init.empty() && !resume && is_new({"init"})) load_tensors(init); // to go on, a trial does not need it
        if (is_new({"data", "validation", "skip-other-images"})) program.check_data(group, arguments[i]);
    }
}

} // namespace

std::vector<std::string> arguments_of(const Trials& trials, const Settings& settings) {
    std::vector<std::string> args = trials.base;
    for (const std::string& arg : arguments_of(settings)) args.push_back(arg);
    return args;
}

void TrialsOptions::declare(Options& o) {
    o.add("ranks-per-trial", &ranks_per_trial, "each trial runs on so many ranks").range(1, 1e6);
    o.add("stop-below", &rules.below, "stop trials whose validation accuracy is below, in percent").range(0, 100);
    o.add("stop-below-after", &rules.below_after, "... from the end of this epoch on").at_least(1);
    o.add("target", &rules.target, "stop a trial that has reached this validation accuracy, in percent; 0: none")
        .range(0, 100);
    o.group("Run");
    o.add("runs", &runs, "folder of all runs").metavar("DIR");
    o.add("run-name", &run_name, "name of this run's folder; none: program and time").metavar("NAME");
    o.add("resume", &resume, "go on with --run-name, with its options: what has ended is not done again");
}

TrialsArguments TrialsOptions::resumed(const std::string& program, const std::vector<std::string>& typed) const {
    RG_CHECK(!run_name.empty(), program, ": --resume needs the --run-name of the run to go on with");
    const RunFolder folder = RunFolder::open(runs, program, run_name);
    const std::string path = folder.config_path();
    const Json config = Json::parse(read_file(path), path);
    RG_CHECK(config.at("program").as_string() == program, path, ": a run of ", config.at("program").as_string(),
             ", not of ", program);
    std::vector<std::string> arguments;
    for (const Json& argument : config.at("arguments").as_array()) arguments.push_back(argument.as_string());
    // The same command once more, with --resume, gives nothing anew: twice the same values would be other trials.
    std::vector<std::string> anew = typed;
    std::erase(anew, "--resume");
    const bool same =
        std::mismatch(arguments.begin(), arguments.end(), anew.begin(), anew.end()).first == arguments.end();
    if (same) anew.erase(anew.begin(), anew.begin() + ptrdiff_t(arguments.size()));
    RG_CHECK(without_init(anew) == anew, program,
             ": --init starts a new run and --resume goes on with an old one; give one of the two");
    arguments.insert(arguments.end(), anew.begin(), anew.end());
    arguments.push_back("--resume");
    return {arguments, true, same ? "" : folder.path()};
}

TrialsRun::TrialsRun(RunFolder& in, const Trials& of)
    : folder(in), trials(of), rows(rows_of(of, in.path())), report(in.path(), rows, [&of](const TrialRow& row) {
          return find_program(of.program).check(arguments_of(of, row.settings));
      }) {
    report.set("summary", cat(of.table.size(), " trials of ", of.program, ", each on ", of.ranks_each,
                              of.ranks_each == 1 ? " rank" : " ranks", ", ranked by validation accuracy"));
}

namespace {

/// What rank 0 does, while it and the others train.
void control_trials(par::TaskPool& pool, TrialsRun& run) {
    const Trials& trials = run.trials;
    std::vector<TrialRow>& rows = run.rows;
    TrialsBoard board(rows);
    Control control(run.folder.path() + "/control");
    double looked = 0;
    bool interrupted = false;
    const auto heed_signals = [&] {
        if (run.folder.take_stop_request()) std::raise(SIGINT); // it means the same
        if (stop_requested() && !std::exchange(interrupted, true)) pool.interrupt();
    };
    run.report.write("running");
    // Trials are the pool's first tasks, so a task's id is its trial's number.
    const auto row_of = [&](const par::TaskRecord& task) -> TrialRow& { return rows[size_t(task.id) - 1]; };
    pool.on_report([&](const par::TaskRecord& task, const Json& line) {
        run.folder.check_in_place();
        TrialRow& row = row_of(task);
        row.live = line;
        const bool epoch = is_epoch(line);
        if (epoch) row.last = line;
        board.update(row, epoch);
        run.report.keep_up();
        heed_signals();
        if (const double now = steady_seconds(); now - looked > kControlSeconds) {
            looked = now;
            for (const int64_t number : control.read())
                if (number >= 1 && number <= int64_t(rows.size())) pool.cancel(number);
        }
    });
    pool.on_change([&](const par::TaskRecord& task) {
        run.folder.check_in_place(); // a trial that failed for want of it is no result
        const bool cut_short = task.state == par::TaskState::cancelled || task.state == par::TaskState::failed;
        const bool left = stop_requested() && cut_short && !task.from_journal; // for the run that goes on
        if (left && task.ranks.empty()) return;                                // it had not begun: nothing has changed
        TrialRow& row = row_of(task);
        row.ranks = task.ranks;
        row.seconds = task.seconds;
        row.state = par::name_of(task.state);
        row.note = task.error;
        if (task.state == par::TaskState::cancelled) row.note = "on request";
        if (task.output.is_object()) {
            row.last = task.output.at("last");
            row.note = task.output.at("stopped").as_string();
        }
        if (task.state == par::TaskState::cancelled || (task.state == par::TaskState::finished && !row.note.empty()))
            row.state = "stopped";
        if (left) row.state = "queued", row.note.clear();
        if (task.from_journal) row.note += row.note.empty() ? "done before" : "; done before";
        board.update(row, true);
        run.report.update(row);
        heed_signals();
    });
    for (const TrialRow& row : rows) {
        const std::vector<std::string> args = arguments_of(trials, row.settings);
        pool.submit("trial",
                    Json::object()
                        .set("program", trials.program)
                        .set("arguments", Json(Json::Array(args.begin(), args.end())))
                        .set("name", cat(row.number)),
                    trials.ranks_each);
    }
    pool.fetch_outputs();
    pool.on_report({});
    pool.on_change({});
    run.report.write(stop_requested() ? "stopped" : "done");
}

/// A new run, or the one to go on with. That has the same trials, or more behind them: a table may have been edited,
/// but a trial that has begun with other settings does not go on with these.
RunFolder open_folder(const std::string& program, const TrialsOptions& s, const std::vector<std::string>& typed,
                      int ranks, const Options& options, const std::vector<Settings>& table) {
    RunFolder folder =
        s.resume ? RunFolder::open(s.runs, program, s.run_name) : RunFolder::create(s.runs, program, s.run_name);
    folder.lock();
    Json config = s.resume ? Json::parse(read_file(folder.config_path()), folder.config_path())
                           : Json::object()
                                 .set("program", program)
                                 .set("version", RG_VERSION)
                                 .set("ranks", ranks)
                                 .set("arguments", Json(Json::Array(typed.begin(), typed.end())))
                                 .set("options", options.to_json())
                                 .set("trials", Json::array());
    Json trials = Json::array();
    for (const Settings& settings : table) trials.push(text_of(settings));
    const Json* const stored = config.find("trials");
    RG_CHECK(stored, program, ": --resume: expected the trials in ", folder.config_path(),
             ", got none; another version has begun this run");
    const Json::Array &before = stored->as_array(), &now = trials.as_array();
    for (size_t i = 0; i < before.size(); ++i)
        RG_CHECK(i < now.size() && now[i] == before[i], program, ": --resume: expected trial ", i + 1, " as it was in ",
                 folder.path(), ", ", before[i].as_string(), "; got ", i < now.size() ? now[i].as_string() : "none",
                 "; others may follow the old ones, or begin a new run");
    folder.write_config(config.set("trials", trials));
    fs::create_directory(folder.path() + "/trials");
    return folder;
}

} // namespace

int run_trials(par::Group& group, const std::string& program, const TrialsOptions& settings, const Options& options,
               const TrialsArguments& arguments, const Trials& trials, const std::function<void(TrialsRun&)>& finish) {
    RG_CHECK(trials.ranks_each <= group.size(), program, ": --ranks-per-trial ", trials.ranks_each,
             " is more than the ", group.size(), group.size() == 1 ? " rank" : " ranks", " of this job");
    install_stop_signals();
    verify_same_options(group, options);
    verify_same(group, "arguments", arguments.texts, "start all ranks with the same options");
    try {
        check_trials(group, program, trials, settings.resume, arguments.stored_in);
    } catch (const Stopped&) {
        return stopped_while_loading(group);
    }

    std::optional<RunFolder> folder; // rank 0 alone has one
    if (group.rank() == 0)
        folder.emplace(open_folder(program, settings, arguments.texts, group.size(), options, trials.table));
    const std::string runs = group.allgather(folder ? folder->path() + "/trials" : "", "folder").front();
    const par::TaskTable tasks{
        {"trial", [&](par::TaskContext& task, const Json& args) { return run_trial(task, args, runs, trials.rules); }}};
    std::optional<TrialsRun> run; // on rank 0, too
    const auto control = [&](par::TaskPool& pool) { control_trials(pool, run.emplace(*folder, trials)); };
    par::run_task_pool(group.link(), tasks, control, folder ? folder->path() + "/journal.jsonl" : "");
    // The others meet it: who waited for a word of the pool would not wait for long.
    while_meeting(group, program, [&] {
        if (!run) return;
        try {
            check_stop();
            finish(*run);
        } catch (const Stopped&) {
            std::cout << "stopped; --resume goes on; " << printable(folder->path()) << std::endl;
        }
    });
    return stopped_exit_code(group);
}

} // namespace rg
