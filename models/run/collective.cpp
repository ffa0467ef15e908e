// See collective.h.
#include "models/run/collective.h"

#include "core/context.h"
#include "core/tape.h"
#include "par/verify.h"

#include <chrono>
#include <future>

namespace rg {

void run_while_polling(par::Group& group, std::string_view what, const std::function<void()>& work,
                       const std::function<void()>& poll_stop) {
    constexpr std::chrono::milliseconds kPollInterval{20};
    RG_CHECK(!Tape::active() && !DryRun::active(), what,
             ": expected no tape, trace or dry run, got one; end it first, ",
             "since it does not see the ops of another thread");
    if (group.size() == 1 && !poll_stop) return work();
    std::future<void> result = std::async(std::launch::async, in_this_context(work));
    while (!group.all(result.wait_for(kPollInterval) == std::future_status::ready, what))
        if (poll_stop) poll_stop();
    result.get();
}

void verify_same_options(par::Group& group, const Options& options) {
    std::vector<std::string> parts;
    for (const auto& [name, value] : options.values())
        if (!options.is_by_rank(name)) parts.push_back(cat("--", name, " ", value));
    par::verify_same(group, "options", parts, "start all ranks with the same options");
}

} // namespace rg
