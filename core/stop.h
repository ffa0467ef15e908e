// Holds the stop request of the process, for example from Ctrl-C, as one flag.
//
// A training program checks the flag between steps, and saves a checkpoint before it ends. Long work that has nothing
// to save, such as loading data, calls check_stop() often: for example once per image, or between two reads of a
// command's output.
#pragma once

#include <atomic>
#include <exception>

namespace rg {

// Only a lock-free atomic is safe both in a signal handler and between threads.
inline std::atomic<bool> stop_flag{false};
static_assert(std::atomic<bool>::is_always_lock_free);

/// The exception that ends work after a stop request. It is not an Error: nothing is wrong, and a retry makes no sense.
struct Stopped : std::exception {
    const char* what() const noexcept override { return "stopped"; }
};

/// Sets the stop request. A signal handler may call it.
inline void request_stop() noexcept { stop_flag.store(true, std::memory_order_relaxed); }

/// Withdraws the stop request, so that other work can follow the work that it has ended.
inline void withdraw_stop() noexcept { stop_flag.store(false, std::memory_order_relaxed); }

/// Returns true after a stop request. Any thread may call it.
inline bool stop_requested() noexcept { return stop_flag.load(std::memory_order_relaxed); }

/// Throws Stopped after a stop request.
inline void check_stop() {
    if (stop_requested()) throw Stopped();
}

} // namespace rg
