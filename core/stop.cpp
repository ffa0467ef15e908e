// Uses a lock-free atomic, since only that is safe both in a signal handler and between threads.
#include "core/stop.h"

#include <atomic>

namespace rg {

namespace {

std::atomic<bool> requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

} // namespace

void request_stop() noexcept { requested.store(true, std::memory_order_relaxed); }

void withdraw_stop() noexcept { requested.store(false, std::memory_order_relaxed); }

bool stop_requested() noexcept { return requested.load(std::memory_order_relaxed); }

void check_stop() {
    if (stop_requested()) throw Stopped();
}

} // namespace rg
