// Where the time of an epoch goes, on each rank: what tells a slow disk from a slow network from a slow machine.
//
// On a GPU, work is waited for where its results are read: an update counts as part of the next step's computing, and a
// sum of gradients, which goes on meanwhile, as part of its own step's. Where there is one rank, an update is a part of
// the step's computing anywhere.
#pragma once

#include "core/json.h"
#include "par/group.h"

#include <array>
#include <chrono>

namespace rg {

class PhaseClock {
public:
    enum Phase : uint8_t { data, compute, sum, update, evaluate, other, count };

    /// An epoch begins: nothing is counted yet.
    void start() { seconds_ = {}, last_ = Clock::now(); }
    /// The time since the last lap, or since the start, belongs to this phase.
    void lap(Phase phase) {
        const Clock::time_point now = Clock::now();
        seconds_[phase] += std::chrono::duration<double>(now - last_).count();
        last_ = now;
    }

    /// [{"rank", "host", "images", "steps", "seconds": {"data": ..., ...}}, ...] with each rank's own number of images.
    /// Collective; the same on all ranks.
    Json gather(par::Group& group, int64_t steps, int64_t images) const;

private:
    using Clock = std::chrono::steady_clock;
    std::array<double, count> seconds_{};
    Clock::time_point last_ = Clock::now();
};

} // namespace rg
