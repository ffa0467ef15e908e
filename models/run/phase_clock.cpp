// See phase_clock.h.
#include "models/run/phase_clock.h"

#include <unistd.h>

namespace rg {

Json PhaseClock::gather(par::Group& group) const {
    constexpr std::array<const char*, count> names = {"data", "compute", "sum", "update", "evaluate", "other"};
    char host[256] = "";
    ::gethostname(host, sizeof host - 1);
    Json seconds = Json::object();
    for (size_t i = 0; i < count; ++i) seconds.set(names[i], seconds_[i]);
    const Json mine = Json::object()
                          .set("rank", group.rank())
                          .set("host", host)
                          .set("images", images_)
                          .set("steps", steps_)
                          .set("seconds", std::move(seconds));
    Json all = Json::array();
    for (const std::string& one : group.allgather(mine.dump(), "times")) all.push(Json::parse(one, "times of a rank"));
    return all;
}

} // namespace rg
