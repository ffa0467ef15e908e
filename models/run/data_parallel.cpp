// See data_parallel.h.
#include "ringgrad/models/run/data_parallel.h"

#include "ringgrad/core/tape.h"
#include "ringgrad/par/verify.h"

#include <algorithm>
#include <chrono>
#include <future>

namespace rg {

void run_while_polling(par::Group& group, std::string_view what, const std::function<void()>& work,
                       const std::function<void()>& pulse) {
    constexpr std::chrono::milliseconds kPollInterval{20};
    RG_CHECK(!Tape::active() && !DryRun::active(), what,
             ": expected no tape, trace or dry run, got one; end it first, ",
             "since it does not see the ops of another thread");
    if (group.size() == 1 && !pulse) return work();
    std::future<void> result = std::async(std::launch::async, in_this_context(work));
    while (!group.all(result.wait_for(kPollInterval) == std::future_status::ready, what))
        if (pulse) pulse();
    result.get();
}

StepSums::StepSums(par::Group& group, const Parameters& parameters)
    : group_(group), parameters_(parameters), workers_left_(group.workers(group.rank())) {
    if (workers_left_ > 1) before_ = parameters.state().clone();
}

std::vector<par::StateBlock> StepSums::blocks() const {
    std::vector<par::StateBlock> blocks;
    if (!state_.defined()) return blocks;
    for (const auto& s : parameters_.states()) {
        float* mean = state_.data<float>() + s.offset;
        blocks.push_back({mean, mean + s.channels, s.channels, double(s.momentum)});
    }
    return blocks;
}

void StepSums::add(double share, std::span<const double> sums) {
    const bool alone = group_.size() == 1 && group_.most_workers() == 1;
    if (!alone && !context().sync) state_ = parameters_.state().to_host();
    sum_.add(blocks(), share, sums);
    if (--workers_left_ > 0) parameters_.state().copy_from(before_);
}

void StepSums::finish(std::span<double> sums) {
    sum_.finish(group_, blocks(), sums);
    if (!state_.defined()) return;
    state_.note_write();
    if (parameters_.state().device()) parameters_.state().copy_from(state_);
}

void verify_same_options(par::Group& group, const Options& options) {
    std::vector<std::string> parts;
    for (const auto& [name, value] : options.values())
        if (name != "data" && name != "test-data" && name != "cache" && name != "threads")
            parts.push_back(cat("--", name, " ", value));
    par::verify_same(group, "options", parts, "start all ranks with the same options");
}

} // namespace rg
