// See trials_options.h.
#include "models/sweep/trials_options.h"

#include "core/atomic_file.h"
#include "core/checksum.h"
#include "core/text.h"
#include "models/run/compute.h"
#include "models/run/model_file.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <set>

namespace rg {
namespace {

/// Throws Error if an argument of a trial is an option that only makes sense for a single training.
void check_arguments(const std::string& name, const Trials& trials, const std::vector<std::string>& arguments,
                     size_t trial) {
    static const std::set<std::string> kOfSingle{"run-name", "runs",     "resume",    "compare", "plan-dump",
                                                 "profile",  "progress", "no-report", "help",    "help-all"};
    for (const std::string& argument : arguments)
        RG_CHECK(!argument.starts_with("--") || !kOfSingle.contains(argument.substr(2, argument.find('=') - 2)), name,
                 ": expected options for trials, got ", argument, " (trial ", trial,
                 "), which is for a single training; use it with ", trials.program->name, " instead");
}

/// Returns the checked options of a trial. Throws Error, with the trial's number, if an option is wrong.
Json options_of(const Trials& trials, const std::vector<std::string>& arguments, size_t trial) try {
    return trials.program->check(arguments);
} catch (const Error& error) {
    const bool list =
        std::ranges::any_of(trials.base, [](const std::string& text) { return text.find(',') != text.npos; });
    fail(error.what(), " (trial ", trial, ")", list ? "; give values to try by --grid, e.g. --grid lr=0.01,0.1" : "");
}

constexpr std::initializer_list<const char*> kComputeOptions{"device", "gpus", "spare-ranks", "precision"};

/// Collective. Returns the ranks that would take images in a training on all ranks with a trial's options. Throws Error
/// if its device or precision is not available.
std::vector<int> ranks_that_compute(par::Group& group, const Json& trial) {
    ComputeOptions settings;
    Options options("", "");
    settings.declare(options);
    for (const char* name : kComputeOptions) options.set(name, trial.at(name).as_string());
    return Compute(settings, options, group).workers().ranks;
}

} // namespace

void declare(Options& o, Trials& s) {
    o.group("Trials");
    o.add("table", &s.table_file, "CSV file with option names in the first line and a trial in each following line")
        .metavar("FILE")
        .basic();
    o.add("grid", &s.grid,
          "option and its values, such as seed=1:4 (1, 2, 3 and 4), lr=0.01,0.05 or 'drops=\"20,40\",30', or with "
          "--random a range, lr=log:1e-3:1 or l2=linear:0:0.01; all values of several --grid are combined, and each "
          "combination with each row of --table")
        .metavar("NAME=VALUES")
        .basic();
    o.add("random", &s.random,
          "draw this many different points at random from --grid, instead of all combinations; 0: all combinations")
        .range(0, double(kMaxTrials))
        .basic();
    o.add("at-once", &s.parallel, "run trials in parallel; off: one after the other, each on all ranks");
    o.add("rank-by", &s.rank_by,
          "metric of an epoch that ranks the trials, such as validation_loss (default: the main validation metric)")
        .metavar("METRIC")
        .basic();
    o.add("ranks-per-trial", &s.ranks_per_trial, "number of ranks for each trial").range(1, 1e6).basic();
    o.add(
         "stop-below", &s.stop_below,
         "stop bad trials; X: those whose --rank-by is worse than X, in percent for accuracies; median: whose best "
         "--rank-by is worse than the median of the others after as many epochs; halving: not in the better half after "
         "N, 2 N, 4 N ... epochs, with N from --stop-below-after; 0: none; median and halving wait for three others")
        .metavar("X|median|halving")
        .basic();
    o.add("stop-below-after", &s.rules.after, "first epoch after which --stop-below is checked").range(1, 1e6);
    o.add("target", &s.rules.target,
          "stop a trial whose --rank-by has reached this value, in percent for accuracies; 0: off")
        .at_least(0);
    o.add("until", &s.until,
          "end the sweep when a trial has reached this value, such as validation_loss=0.5, in percent for accuracies")
        .metavar("METRIC=VALUE");
    o.group("Run");
    o.add("runs", &s.runs, "folder of all runs").metavar("DIR");
    o.add("run-name", &s.run_name, "name of this run's folder (default: program name and start time)")
        .metavar("NAME")
        .basic();
    declare_progress(o, &s.progress);
    o.add("resume", &s.resume, "continue --run-name with its options; finished trials are not run again").basic();
}

std::vector<TrialSettings> make_table(const Trials& s) {
    const std::string command = cat(s.program->name, " sweep");
    RG_CHECK(!s.table_file.empty() || !s.grid.empty(), command,
             ": expected --table or --grid, got neither; give at least one, such as ", shell_word(invocation_name()),
             " sweep ", s.program->examples[0], " --grid lr=0.01,0.1");
    RG_CHECK(s.random == 0 || !s.grid.empty(), command, ": expected --grid with --random, got none; omit --random");
    const auto rows =
        s.table_file.empty() ? std::vector<TrialSettings>(1) : parse_trials(read_file(s.table_file), s.table_file);
    const auto seed = [&] { return uint64_t(s.program->check(s.base).at("seed").as_int()); }; // of all trials
    const std::vector<TrialSettings> points =
        s.random > 0 ? random_trials(s.grid, s.random, seed()) : trial_grid(s.grid);
    RG_CHECK(rows.size() * points.size() <= kMaxTrials, command, ": expected at most ", kMaxTrials, " trials, got ",
             rows.size() * points.size(), " (", rows.size(), " of the table times ", points.size(),
             " of the grid); shorten --table or --grid");
    std::vector<TrialSettings> all;
    for (const TrialSettings& row : rows)
        for (const TrialSettings& point : points) {
            for (const auto& setting : point)
                RG_CHECK(std::none_of(row.begin(), row.end(),
                                      [&](const auto& other) { return other.first == setting.first; }),
                         command, ": expected ", setting.first, " in --table or in --grid, got it in both; remove one");
            all.push_back(row);
            all.back().insert(all.back().end(), point.begin(), point.end());
        }
    return all;
}

Ranking ranking_by(const std::string& name, const std::vector<MetricInfo>& metrics, const char* option) {
    std::vector<MetricInfo> known;
    for (const std::string set : {"validation", "train"}) {
        for (const MetricInfo& metric : metrics)
            known.push_back(
                {set + "_" + metric.name, set + " " + metric.shown(), metric.unit, metric.higher_is_better});
        known.push_back({set + "_loss", set + " loss"});
    }
    known.push_back({"images_per_s", "images/s", "", true});
    known.push_back({"seconds", "time", "s"});
    return name.empty() ? known.front() : metric_named(option, name, known);
}

void check_trials(par::Group& group, const std::string& name, Trials& trials, const std::string& stored_in) {
    std::vector<std::vector<std::string>> arguments;
    std::vector<Json> options;
    for (const TrialSettings& settings : trials.table) {
        arguments.push_back(arguments_of(trials, settings));
        check_arguments(name, trials, arguments.back(), arguments.size());
        options.push_back(options_of(trials, arguments.back(), arguments.size()));
        RG_CHECK(options.back().at("validation").as_double() > 0, name,
                 ": expected a --validation above 0, got 0 (trial ", options.size(),
                 "); trials are ranked on their validation sets; to train on all images, use ", trials.program->name);
        // Check the parsed values for commands (pipe:), since an argument can be spelled in many ways.
        for (const char* const source : {"data", "test-data"})
            if (!stored_in.empty())
                check_stored_command(stored_in, options.back().at(source).as_string(),
                                     "type the options of this run again before --resume");
    }
    std::set<std::string> checked;
    const auto is_new = [&](const Json& trial, std::initializer_list<const char*> names) {
        std::string key;
        for (const char* option : names) key += cat(option, " ", trial.at(option).dump(), "\n");
        return checked.insert(key).second;
    };
    // Trials on fewer GPUs train on a subset of the ranks of the others. All trials get the smallest set, so that no
    // two trials share a GPU.
    for (const Json& trial : options)
        if (is_new(trial, kComputeOptions))
            if (const std::vector<int> ranks = ranks_that_compute(group, trial);
                trials.ranks.empty() || ranks.size() < trials.ranks.size())
                trials.ranks = ranks;
    trials.ranks_each = trials.parallel ? int(trials.ranks_per_trial) : group.size();
    RG_CHECK(!trials.parallel || trials.ranks_per_trial <= int64_t(trials.ranks.size()), name,
             ": expected --ranks-per-trial of at most ", trials.ranks.size(), ", the number of ranks that train, got ",
             trials.ranks_per_trial);
    for (size_t i = 0; i < options.size(); ++i) {
        const std::string& init = options[i].at("init").as_string();
        // With --resume, the file may be gone: trials that have begun do not need it.
        if (!init.empty() && (!trials.resume || std::filesystem::exists(init)) && is_new(options[i], {"init"}))
            trials.fingerprints.set(cat("--init file of trial ", i + 1),
                                    cat("checksum ", checksum(read_file(load_model(init).source, kMaxTensorFile))));
        if (!is_new(options[i],
                    {"data", "test-data", "size", "store-size", "validation", "skip-other-images", "label-from"}))
            continue;
        const Program::DataCheck found = trials.program->check_data(group, arguments[i]);
        trials.ranking = ranking_by(trials.rank_by, found.metrics);
        if (const std::vector<std::string> until = split(trials.until, '='); !trials.until.empty()) {
            RG_CHECK(until.size() == 2 && read_number(until[1], trials.rules.until),
                     "--until: expected METRIC=VALUE, such as validation_loss=0.5, got ", trials.until);
            trials.rules.until_metric = ranking_by(until[0], found.metrics, "--until");
        }
        for (const auto& [set, text] : found.sets.as_object())
            trials.fingerprints.set(cat(set, " of trial ", i + 1), text);
        for (const std::string& warning : found.warnings)
            if (group.rank() == 0) std::cerr << printable(warning) << "\n";
    }
}

TrialsArguments arguments_to_resume(const std::string& program, const Trials& s,
                                    const std::vector<std::string>& typed) {
    RG_CHECK(!s.run_name.empty(), program, ": expected --run-name with --resume, got none; name the run to continue");
    const RunFolder folder = RunFolder::open(s.runs, program, s.run_name);
    const std::string path = folder.config_path();
    const Json config = Json::parse(read_file(path), path);
    RG_CHECK(config.at("program").as_string() == program, path, ": expected a run of ", program, ", got one of ",
             config.at("program").as_string());
    std::vector<std::string> arguments = config.at("arguments").as_texts();
    // If the user repeats the command of the run, drop the repeated part: list options would get their values twice.
    std::vector<std::string> added = typed;
    std::erase(added, "--resume");
    const bool repeated =
        std::mismatch(arguments.begin(), arguments.end(), added.begin(), added.end()).first == arguments.end();
    if (repeated) added.erase(added.begin(), added.begin() + ptrdiff_t(arguments.size()));
    RG_CHECK(without(added, "--init") == added, program,
             ": expected --init (starts a new run) or --resume (continues a run), got both; omit one");
    if (without(added, "--grid") != added)
        arguments = without(arguments, "--grid"); // as in the command with a larger N
    arguments.insert(arguments.end(), added.begin(), added.end());
    arguments.push_back("--resume");
    return {arguments, true, repeated ? "" : folder.path()};
}

std::vector<std::string> arguments_of(const Trials& trials, const TrialSettings& settings) {
    std::vector<std::string> args = trials.base;
    for (const std::string& arg : arguments_of(settings)) args.push_back(arg);
    return args;
}

std::vector<std::string> without(const std::vector<std::string>& arguments, const std::string& option) {
    std::vector<std::string> kept;
    for (size_t i = 0; i < arguments.size(); ++i) {
        if (arguments[i] == option)
            ++i; // also omit its value
        else if (!arguments[i].starts_with(option + "="))
            kept.push_back(arguments[i]);
    }
    return kept;
}

} // namespace rg
