// The flag is a lock-free atomic: the only thing that both a signal handler and other threads may touch.
#include "models/signals.h"

#include <atomic>
#include <csignal>

namespace rg {
namespace {

std::atomic<bool> requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int) { requested.store(true, std::memory_order_relaxed); }

} // namespace

void install_stop_signals() {
    requested = false;
    struct sigaction action {};
    action.sa_handler = on_signal;
    // RESETHAND: the next one is not ours. RESTART: a write to a checkpoint goes on as if nothing had come.
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
}

bool stop_requested() { return requested.load(std::memory_order_relaxed); }

} // namespace rg
