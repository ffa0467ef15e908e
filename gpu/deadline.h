// A wait that does not last forever if a GPU never finishes its work.
#pragma once

#include "core/clock.h"

#include <thread>

namespace rg::gpu {

/// Calls done() until it returns true; then returns true. Returns false after `seconds`. Between calls, yields the
/// core, and sleeps after the first 20 ms: most steps end earlier, and a sleep would notice their end up to 0.1 ms
/// late.
template <class Done>
bool ends_within(double seconds, Done done) {
    for (const double begin = seconds_now(); !done();) {
        const double waited = seconds_now() - begin;
        if (waited > seconds) return false;
        if (waited > 0.02)
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        else
            std::this_thread::yield();
    }
    return true;
}

} // namespace rg::gpu
