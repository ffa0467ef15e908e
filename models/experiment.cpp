// experiment: a table of trials of any training program, at the same time over the ranks or one after the other.
//
// The table is a CSV file with option names in its first line, or all combinations of some values, or both: then every
// line of the file with every combination. Trials are ranked by the accuracy on a validation part of their training
// images; none of them sees the test set. What a trial is, and what is shown and written, is in models/sweep/trials.h.
#include "core/text.h"
#include "models/sweep/trials.h"
#include "models/sweep/trials_board.h"
#include "par/session.h"

#include <algorithm>
#include <iostream>

using namespace rg;

namespace {

struct ExperimentSettings {
    std::string program = "train_cifar", table;
    std::vector<std::string> grid;
    bool at_once = true;
    TrialsOptions trials;
};

void declare(Options& o, ExperimentSettings& s) {
    o.group("Trials");
    o.add("program", &s.program, "the training program").metavar("NAME");
    o.add("table", &s.table, "CSV file: option names in the first line, a trial on each other one").metavar("FILE");
    o.add("grid", &s.grid,
          "an option and its values, such as depth=1:4, lr=0.01,0.05 or 'drops=\"20,40\",30'; several make all "
          "combinations")
        .metavar("NAME=VALUES");
    o.add("at-once", &s.at_once,
          "as many trials at a time as there are ranks for; off: one after the other, each on "
          "all ranks");
    s.trials.declare(o);
}

std::vector<Settings> table_of(const ExperimentSettings& s) {
    std::vector<Settings> rows = s.table.empty() ? std::vector<Settings>(1) : read_trials(s.table), all;
    for (const Settings& row : rows)
        for (const Settings& point : trial_grid(s.grid)) {
            for (const auto& setting : point)
                RG_CHECK(
                    std::none_of(row.begin(), row.end(), [&](const auto& own) { return own.first == setting.first; }),
                    "experiment: expected ", setting.first, " in --table or in --grid, got it in both");
            all.push_back(row);
            all.back().insert(all.back().end(), point.begin(), point.end());
        }
    return all;
}

void print_best_first(const TrialsRun& run) {
    std::vector<TrialRow> rows = run.rows;
    std::stable_sort(rows.begin(), rows.end(),
                     [](const TrialRow& a, const TrialRow& b) { return a.accuracy() > b.accuracy(); });
    std::cout << "\nbest first, by validation accuracy:\n";
    for (const TrialRow& row : rows) std::cout << line_of(row) << "\n";
    std::cout << printable(run.folder.path()) << "/results.csv" << std::endl;
}

int experiment(par::Group& group, const TrialsArguments& arguments) {
    ExperimentSettings s;
    Trials trials{"", {kDefaultValidation}, {}, 1, {}};
    Options options("experiment", "trains many networks with different options, and ranks them by validation accuracy");
    declare(options, s);
    options.pass_on(
        &trials.base,
        "one of the training program, for all trials; here --validation is 0.1 by default, and cannot be 0");
    if (!options.parse(arguments.texts)) {
        if (group.rank() == 0) std::cout << options.help();
        return 0;
    }
    if (s.trials.resume && !arguments.resumed)
        return experiment(group, s.trials.resumed("experiment", arguments.texts));
    RG_CHECK(!s.table.empty() || !s.grid.empty(), "experiment: expected --table or --grid, got neither");
    trials.program = s.program;
    trials.ranks_each = s.at_once ? int(s.trials.ranks_per_trial) : group.size();
    trials.rules = s.trials.rules;
    trials.table = table_of(s);
    return run_trials(group, "experiment", s.trials, options, arguments, trials, print_best_first);
}

} // namespace

int main(int argc, char** argv) {
    return par::run_ranks_main(argc, argv, [&](par::Group& group) {
        return experiment(group, {.texts = {argv + 1, argv + argc}});
    });
}
