// Holds the stop request of the process, for example from Ctrl-C, as one flag.
//
// A training program checks the flag between steps, and saves a checkpoint before it ends. Long work that has nothing
// to save, such as loading data, calls check_stop() often: for example once per image, or between two reads of a
// command's output.
#pragma once

#include <exception>

namespace rg {

/// The exception that ends work after a stop request. It is not an Error: nothing is wrong, and a retry makes no sense.
struct Stopped : std::exception {
    const char* what() const noexcept override { return "stopped"; }
};

/// Sets the stop request. A signal handler may call it.
void request_stop() noexcept;

/// Withdraws the stop request, so that other work can follow the work that it has ended.
void withdraw_stop() noexcept;

/// Returns true after a stop request. Any thread may call it.
bool stop_requested() noexcept;

/// Throws Stopped after a stop request.
void check_stop();

} // namespace rg
