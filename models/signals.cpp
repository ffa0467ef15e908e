// The flags are lock-free atomics: the only thing that both a signal handler and other threads may touch.
#include "models/signals.h"

#include <atomic>
#include <csignal>

namespace rg {
namespace {

std::atomic<bool> requested{false}, interrupted{false}; // by anyone; by SIGTERM or SIGUSR1
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int number) {
    if (number != SIGINT) interrupted.store(true, std::memory_order_relaxed);
    requested.store(true, std::memory_order_relaxed);
}

} // namespace

void install_stop_signals() {
    struct sigaction action {};
    action.sa_handler = on_signal;
    // RESETHAND: the next one is not ours. RESTART: a write to a checkpoint goes on as if nothing had come.
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
    sigemptyset(&action.sa_mask);
    for (const int number : {SIGINT, SIGUSR1, SIGTERM}) sigaction(number, &action, nullptr);
    std::signal(SIGXFSZ, SIG_IGN);
}

bool stop_requested() { return requested.load(std::memory_order_relaxed); }

int stopped_exit_code(par::Group& group) {
    return group.all(!interrupted.load(std::memory_order_relaxed), "exit code") ? 0 : kExitInterrupted;
}

} // namespace rg
