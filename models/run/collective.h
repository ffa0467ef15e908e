// Work and checks that all ranks do together.
#pragma once

#include "core/options.h"
#include "par/group.h"

#include <functional>

namespace rg {

/// Collective. Runs `work` on another thread, in the caller's context, and blocks until all ranks are done. (A single
/// rank without `poll_stop` runs it directly.) Meanwhile the calling thread exchanges messages with the other ranks.
/// Otherwise long work might exceed the deadline after which a silent rank counts as failed. If `work` threw an
/// exception on this rank, throws it when all ranks are done. `work` must not use the group. `what` names the work in
/// error texts. Calls `poll_stop`, if given, on the calling thread, at most about 50 times a second; see
/// TrainingObserver::poll_stop(). Throws Error inside a tape, trace or dry run.
void run_while_polling(par::Group& group, std::string_view what, const std::function<void()>& work,
                       const std::function<void()>& poll_stop = {});

/// Collective. Throws par::RanksDiffer on all ranks unless all have the same values of the options, except those
/// declared by_rank(). (TrainingRun::check_data() compares the data themselves.)
void verify_same_options(par::Group& group, const Options& options);

} // namespace rg
