// See signals.h.
#include "models/signals.h"

#include <atomic>
#include <csignal>
#include <cstdio>

namespace rg {
namespace {

std::atomic<bool> interrupted{false}; // by another signal than SIGINT

void on_signal(int number) {
    if (number != SIGINT) interrupted.store(true, std::memory_order_relaxed);
    request_stop();
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

int stopped_exit_code(par::Group& group) {
    return group.all(!interrupted.load(std::memory_order_relaxed), "exit code") ? 0 : kExitInterrupted;
}

int stopped_while_loading(par::Group& group) {
    if (group.rank() == 0) std::puts("stopped while loading data; nothing was saved");
    return stopped_exit_code(group);
}

} // namespace rg
