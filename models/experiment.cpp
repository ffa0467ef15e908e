// experiment: runs trials of any training program, in parallel over the ranks or one after the other.
//
// The trials come from a CSV file with option names in its first line, or from a grid, which is all combinations of
// some values. If both are given, every row of the file is combined with every point of the grid. Trials are ranked by
// validation accuracy; none of them uses the test set. models/sweep/trials.h describes trials and their output.
#include "ringgrad/core/text.h"
#include "ringgrad/models/sweep/trials.h"
#include "ringgrad/models/sweep/trials_board.h"

#include <algorithm>
#include <iostream>

using namespace rg;

namespace {

void declare(Options& o, Trials& s) {
    o.add("program", &s.program, "training program: train_cifar, train_digits or train_digits_angles").metavar("NAME");
    o.add("table", &s.table_file, "CSV file with option names in the first line and a trial in each following line")
        .metavar("FILE");
    o.add("grid", &s.grid,
          "option and its values, for example depth=1:4, lr=0.01,0.05 or 'drops=\"20,40\",30'; several --grid make all "
          "combinations; with --table, every row of the table is combined with every point of the grid")
        .metavar("NAME=VALUES");
    o.add("at-once", &s.parallel, "run trials in parallel; off: one after the other, each on all ranks");
}

std::vector<TrialSettings> make_table(const Trials& s) {
    RG_CHECK(!s.table_file.empty() || !s.grid.empty(),
             "experiment: expected --table or --grid, got neither; give at least one");
    std::vector<TrialSettings> rows = s.table_file.empty() ? std::vector<TrialSettings>(1) : read_trials(s.table_file);
    std::vector<TrialSettings> all;
    for (const TrialSettings& row : rows)
        for (const TrialSettings& point : trial_grid(s.grid)) {
            for (const auto& setting : point)
                RG_CHECK(std::none_of(row.begin(), row.end(),
                                      [&](const auto& other) { return other.first == setting.first; }),
                         "experiment: expected ", setting.first,
                         " in --table or in --grid, got it in both; remove one");
            all.push_back(row);
            all.back().insert(all.back().end(), point.begin(), point.end());
        }
    return all;
}

void print_best_first(TrialsRun& run) {
    std::vector<TrialRow> rows = run.rows;
    std::stable_sort(rows.begin(), rows.end(),
                     [](const TrialRow& a, const TrialRow& b) { return a.accuracy() > b.accuracy(); });
    std::cout << "\nbest first, by validation accuracy:\n";
    for (const TrialRow& row : rows) std::cout << trial_line(row) << "\n";
    std::cout << printable(run.folder.path()) << "/results.csv" << std::endl;
}

const TrialsProgram kExperiment{
    "experiment",
    "trains networks with different options, and ranks them by validation accuracy",
    "option of the training program, for all trials; the default of --validation is 0.1, and it must not be 0",
    {kDefaultValidation},
    declare,
    make_table,
    print_best_first,
};

} // namespace

int main(int argc, char** argv) { return run_trials_main(argc, argv, kExperiment); }
