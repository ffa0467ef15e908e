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

    /// Begins an epoch: nothing is counted yet.
    void start() { seconds_ = {}, steps_ = images_ = 0, last_ = Clock::now(); }
    /// Counts a step in which this rank takes so many images.
    void count_step(int64_t images) { ++steps_, images_ += images; }
    /// Adds the time since the last lap, or since the start, to this phase.
    void lap(Phase phase) {
        const Clock::time_point now = Clock::now();
        seconds_[phase] += std::chrono::duration<double>(now - last_).count();
        last_ = now;
    }

    /// [{"rank", "host", "images", "steps", "seconds": {"data": ..., ...}}, ...] with each rank's own number of images.
    /// Collective; the same on all ranks.
    Json gather(par::Group& group) const;

private:
    using Clock = std::chrono::steady_clock;
    std::array<double, count> seconds_{};
    int64_t steps_ = 0, images_ = 0;
    Clock::time_point last_ = Clock::now();
};

} // namespace rg
