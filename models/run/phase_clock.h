// Measures the time of each phase of an epoch, on each rank. The times show whether a disk, a network or a machine is
// slow.
//
// A GPU runs asynchronously, and its time counts in the phase in which the CPU waits for its results. So with a GPU,
// `compute` includes the sum of the gradients over the ranks. With a single worker in all, on a CPU or GPU, `compute`
// includes the update.
#pragma once

#include "core/clock.h"
#include "core/json.h"
#include "data/cache.h"
#include "par/group.h"

#include <array>

namespace rg {

class PhaseClock {
public:
    enum Phase : uint8_t { data, compute, sum, update, evaluate, other, count };

    /// Begins an epoch with all times and counts at 0.
    void start() { seconds_ = {}, steps_ = images_ = 0, last_ = seconds_now(); }
    /// Counts a step and this rank's images in it.
    void count_step(int64_t images) { ++steps_, images_ += images; }
    /// Adds the time since the last lap(), or since start(), to this phase, and returns it.
    double lap(Phase phase) {
        const double seconds = seconds_now() - last_;
        seconds_[phase] += seconds, last_ += seconds;
        return seconds;
    }

    /// Collective. Returns [{"rank", "host", "images", "steps", "seconds": {"data": ..., ...}}, ...] with one object
    /// per rank, on every rank. "images" counts only the images of that rank. "seconds" has each phase.
    Json gather(par::Group& group) const {
        constexpr std::array<const char*, count> names = {"data", "compute", "sum", "update", "evaluate", "other"};
        Json seconds = Json::object();
        for (size_t i = 0; i < count; ++i) seconds.set(names[i], seconds_[i]);
        const Json own = Json::object()
                             .set("rank", group.rank())
                             .set("host", data::node_name())
                             .set("images", images_)
                             .set("steps", steps_)
                             .set("seconds", std::move(seconds));
        Json all = Json::array();
        for (const std::string& text : group.allgather(own.dump(), "times"))
            all.push(Json::parse(text, "times of a rank"));
        return all;
    }

private:
    std::array<double, count> seconds_{};
    int64_t steps_ = 0, images_ = 0;
    double last_ = seconds_now();
};

} // namespace rg
