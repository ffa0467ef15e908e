// The command line of a program that runs trials: its options, the trials that they define, and the checks before any
// trial begins.
#pragma once

#include "ringgrad/models/sweep/trials.h"

namespace rg {

/// The command line of a program of trials.
struct TrialsArguments {
    std::vector<std::string> texts = {}; // the arguments
    bool resumed = false;                // true if `texts` begins with the arguments of the resumed run
    // The folder of the resumed run, if some arguments come only from its config.json. Empty if all were typed.
    std::string stored_in = {};
};

/// Declares the options of a program `p` that runs trials. Their values go to `s`. If `p` has several training
/// programs, also declares --program, whose value goes to `program`.
void declare(Options& o, const TrialsProgram& p, Trials& s, std::string& program);

/// Returns the trials. Throws Error if the options define none or more than kMaxTrials, or if an option is both in the
/// table and in the grid.
std::vector<TrialSettings> make_table(const TrialsProgram& p, const Trials& s);

/// Collective. Throws Error if an option of a trial is wrong; see run_trials_main(). Sets the ranking. `stored_in` is
/// that of TrialsArguments.
void check_trials(par::Group& group, const std::string& name, Trials& trials, const std::string& stored_in);

/// Returns the arguments of the run to resume, followed by the `typed` ones and --resume. If `typed` begins with the
/// arguments of the run, does not add these twice. Throws Error if there is no --run-name or no such run, or if `typed`
/// adds --init.
TrialsArguments arguments_to_resume(const std::string& program, const Trials& s, const std::vector<std::string>& typed);

} // namespace rg
