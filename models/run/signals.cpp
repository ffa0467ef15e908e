// See signals.h.
#include "models/run/signals.h"

#include "core/clock.h"

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <unistd.h>

namespace rg {
namespace {

std::atomic<bool> interrupted{false};        // true after a stop signal other than SIGINT
std::atomic<double> seconds_to_kill{1};      // argument of install_stop_signals()
std::array<std::atomic<double>, NSIG> times; // when the first signal of each kind but SIGPIPE came; 0: never

void on_signal(int number) {
    if (number != SIGINT) interrupted.store(true, std::memory_order_relaxed);
    request_stop();
    double first = 0;
    const double now = seconds_now();
    // A closed pipe sends SIGPIPE for each further line of output, so another one must not kill.
    if (number == SIGPIPE || times[size_t(number)].compare_exchange_strong(first, now)) return;
    if (now - first < seconds_to_kill) return;
    std::signal(number, SIG_DFL);
    std::raise(number); // comes when this handler ends, since it blocks its own signal
}

/// Handles SIGBUS: memory of a mapped file cannot be read. Without this handler, the program would end without a
/// message.
void on_bus_error(int) {
    constexpr char kText[] =
        "error: cannot read a mapped file, such as a packed set: it was cut off, or its disk failed\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText, sizeof kText - 1);
    ::_exit(1);
}

/// The signals that the process was started to ignore: SIGHUP by nohup, SIGPIPE by service managers. UCX, a library
/// that MPICH can use, installs a handler for SIGHUP before main(). So record_ignored() runs before the constructors of
/// all libraries.
std::array<bool, NSIG> ignored{};
void record_ignored() {
    for (const int number : {SIGHUP, SIGPIPE}) {
        struct sigaction action {};
        sigaction(number, nullptr, &action);
        ignored[size_t(number)] = action.sa_handler == SIG_IGN;
    }
}
[[gnu::section(".preinit_array"), gnu::used]] void (*before_libraries)() = record_ignored;

} // namespace

void install_stop_signals(double kill_after) {
    seconds_to_kill = kill_after;
    for (std::atomic<double>& time : times) time = 0;
    struct sigaction action {};
    action.sa_flags = SA_RESTART; // a write to a checkpoint continues after a signal
    sigemptyset(&action.sa_mask);
    for (const int number : {SIGINT, SIGUSR1, SIGTERM, SIGPIPE, SIGHUP}) {
        action.sa_handler = ignored[size_t(number)] ? SIG_IGN : on_signal;
        sigaction(number, &action, nullptr);
    }
    action.sa_handler = on_bus_error;
    sigaction(SIGBUS, &action, nullptr);
}

int exit_code_after_stop(par::Group& group) {
    return group.all(!interrupted.load(std::memory_order_relaxed), "exit code") ? 0 : kExitInterrupted;
}

int stopped_while_loading(par::Group& group) {
    if (group.rank() == 0) std::puts("stopped while loading data; nothing was saved");
    return exit_code_after_stop(group);
}

} // namespace rg
