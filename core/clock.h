// The clocks: one for measurements and time limits, one for dates.
#pragma once

#include <chrono>

namespace rg {

/// Returns the seconds since a fixed moment. Changes of the system's time do not affect it.
inline double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Calls f and returns its run time in seconds.
template <class F>
double wall_seconds(F&& f) {
    const double start = seconds_now();
    f();
    return seconds_now() - start;
}

/// Returns the time in seconds since 1970.
inline double unix_seconds() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

} // namespace rg
