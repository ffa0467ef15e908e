// The request to stop the process, e.g. by Ctrl-C, as one flag.
//
// Training loops look at it between steps, since they must save first. Work that may take long and has nothing to save,
// such as loading data, calls check_stop() often: once per image, and between two looks at a command's output.
#pragma once

#include <exception>

namespace rg {

/// Thrown by work that was told to stop. Not an Error: nothing is wrong, and nothing is to be tried again.
struct Stopped : std::exception {
    const char* what() const noexcept override { return "stopped"; }
};

/// Sets the flag. May be called from a signal handler.
void request_stop() noexcept;

/// True once the process was asked to stop. May be called from any thread.
bool stop_requested() noexcept;

/// Throws Stopped once the process was asked to stop.
void check_stop();

} // namespace rg
