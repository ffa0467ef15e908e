// experiment: a table of trials of any training program, at the same time over the ranks or one after the other.
//
// The table is a CSV file with option names in its first line, or all combinations of some values, or both: then every
// line of the file with every combination. What a trial is, and what is shown and written, is in models/trials.h.
#include "models/programs.h"
#include "models/signals.h"
#include "models/trials.h"
#include "par/session.h"

#include <algorithm>
#include <iostream>
#include <optional>

using namespace rg;

namespace {

struct ExperimentSettings {
    std::string program = "train_cifar", table, runs = "runs", run_name;
    std::vector<std::string> grid;
    int64_t ranks_per_trial = 1;
    bool at_once = true, resume = false;
    StopRules rules;
};

void declare(Options& o, ExperimentSettings& s) {
    o.group("Trials");
    o.add("program", &s.program, "the training program").metavar("NAME");
    o.add("table", &s.table, "CSV file: option names in the first line, a trial on each other one").metavar("FILE");
    o.add("grid", &s.grid, "an option and its values, such as depth=1:4 or lr=0.01,0.05; several make all combinations")
        .metavar("NAME=VALUES");
    o.add("at-once", &s.at_once,
          "as many trials at a time as there are ranks for; off: one after the other, each on "
          "all ranks");
    o.add("ranks-per-trial", &s.ranks_per_trial, "at once: each trial runs on so many ranks").range(1, 1e6);
    o.add("stop-below", &s.rules.below, "stop trials whose accuracy on the set they are tested on is below, in percent")
        .range(0, 100);
    o.add("stop-below-after", &s.rules.below_after, "... from the end of this epoch on").at_least(1);
    o.add("target", &s.rules.target, "stop a trial that has reached this accuracy, in percent; 0: none").range(0, 100);
    o.group("Run");
    o.add("runs", &s.runs, "folder of all runs").metavar("DIR");
    o.add("run-name", &s.run_name, "name of this run's folder; none: program and time").metavar("NAME");
    o.add("resume", &s.resume, "go on with --run-name, with its options: what has ended is not done again");
}

std::vector<Settings> table_of(const ExperimentSettings& s) {
    std::vector<Settings> rows = s.table.empty() ? std::vector<Settings>(1) : read_trials(s.table), all;
    for (const Settings& row : rows)
        for (const Settings& point : trial_grid(s.grid)) {
            all.push_back(row);
            all.back().insert(all.back().end(), point.begin(), point.end());
        }
    return all;
}

/// What rank 0 does, while it and the others train.
void control(par::TaskPool& pool, RunFolder& folder, const Trials& trials) {
    TrialsRun run(folder, trials);
    run_trials(pool, run);
    if (stop_requested()) {
        std::cout << "stopped; --resume goes on; " << folder.path() << std::endl;
        return;
    }
    std::vector<TrialRow> rows = run.rows;
    std::stable_sort(rows.begin(), rows.end(),
                     [](const TrialRow& a, const TrialRow& b) { return a.accuracy() > b.accuracy(); });
    std::cout << "\nbest first:\n";
    for (const TrialRow& row : rows) std::cout << line_of(row) << "\n";
    std::cout << folder.path() << "/results.csv" << std::endl;
}

int experiment(par::Group& group, const std::vector<std::string>& typed, bool resumed = false) {
    ExperimentSettings s;
    Trials trials;
    Options options("experiment", "trains many networks with different options, and makes a table of what came out");
    declare(options, s);
    options.pass_on(&trials.base, "one of the training program, for all trials");
    if (!options.parse(typed)) {
        if (group.rank() == 0) std::cout << options.help();
        return 0;
    }
    if (s.resume && !resumed) { // as it was begun, and whatever is given anew
        std::vector<std::string> all = arguments_of_run(s.runs, s.run_name, "experiment");
        all.insert(all.end(), typed.begin(), typed.end());
        return experiment(group, all, true);
    }
    RG_CHECK(!s.table.empty() || !s.grid.empty(), "experiment: expected --table or --grid, got neither");
    RG_CHECK(s.ranks_per_trial <= group.size(), "experiment: --ranks-per-trial ", s.ranks_per_trial,
             " is more than the ", group.size(), group.size() == 1 ? " rank" : " ranks", " of this job");
    trials.program = s.program;
    trials.ranks_each = s.at_once ? int(s.ranks_per_trial) : group.size();
    trials.rules = s.rules;
    trials.table = table_of(s);
    check_trials(trials);
    install_stop_signals();

    std::optional<RunFolder> folder; // rank 0 alone has one
    if (group.rank() == 0)
        folder.emplace(open_trials_folder(s.runs, s.run_name, "experiment", s.resume, typed, group.size(), options));
    par::run_task_pool(
        group.link(), trial_functions(), [&](par::TaskPool& pool) { control(pool, *folder, trials); },
        folder ? folder->path() + "/journal.jsonl" : "");
    return stopped_exit_code(group);
}

} // namespace

int main(int argc, char** argv) {
    return par::run_ranks_main(argc, argv, [&](par::Group& group) {
        return experiment(group, {argv + 1, argv + argc});
    });
}
