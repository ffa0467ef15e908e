// See phase_clock.h.
#include "ringgrad/models/run/phase_clock.h"

#include "ringgrad/models/run/memory.h"

namespace rg {

Json PhaseClock::gather(par::Group& group) const {
    constexpr std::array<const char*, count> names = {"data", "compute", "sum", "update", "evaluate", "other"};
    Json seconds = Json::object();
    for (size_t i = 0; i < count; ++i) seconds.set(names[i], seconds_[i]);
    const Json own = Json::object()
                         .set("rank", group.rank())
                         .set("host", this_host().name)
                         .set("images", images_)
                         .set("steps", steps_)
                         .set("seconds", std::move(seconds));
    Json all = Json::array();
    for (const std::string& text : group.allgather(own.dump(), "times")) all.push(Json::parse(text, "times of a rank"));
    return all;
}

} // namespace rg
