// Measures the time of each phase of an epoch, on each rank. The times show whether a disk, a network or a machine is
// slow.
//
// A GPU runs asynchronously, and its time counts in the phase in which the CPU waits for its results. So with a GPU,
// `compute` includes the sum of the gradients over the ranks. On a single rank, CPU or GPU, `compute` includes the
// update.
#pragma once

#include "ringgrad/core/json.h"
#include "ringgrad/par/group.h"

#include <array>
#include <chrono>

namespace rg {

class PhaseClock {
public:
    enum Phase : uint8_t { data, compute, sum, update, evaluate, other, count };

    /// Begins an epoch with all times and counts at 0.
    void start() { seconds_ = {}, steps_ = images_ = 0, last_ = Clock::now(); }
    /// Counts a step and this rank's images in it.
    void count_step(int64_t images) { ++steps_, images_ += images; }
    /// Adds the time since the last lap(), or since start(), to this phase.
    void lap(Phase phase) {
        const Clock::time_point now = Clock::now();
        seconds_[phase] += std::chrono::duration<double>(now - last_).count();
        last_ = now;
    }

    /// Collective. Returns [{"rank", "host", "images", "steps", "seconds": {"data": ..., ...}}, ...] with one member
    /// per rank, on every rank. "images" counts only the images of that rank.
    Json gather(par::Group& group) const;

private:
    using Clock = std::chrono::steady_clock;
    std::array<double, count> seconds_{};
    int64_t steps_ = 0, images_ = 0;
    Clock::time_point last_ = Clock::now();
};

} // namespace rg
