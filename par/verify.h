// Compares values that all ranks must have in common. Without this, ranks that differ would train different networks
// without an error.
#pragma once

#include "par/group.h"

namespace rg::par {

/// Says that ranks differ, for example in options, images or parameters. All ranks throw it. The program then ends with
/// the exit code kExitRanksDiffer (session.h).
class RanksDiffer : public Error {
public:
    using Error::Error;
};

/// Collective. Throws RanksDiffer on all ranks unless `parts` is the same on all. The message compares the parts that
/// most ranks have (those of rank 0 if there is no majority) with those of the first rank that differs. It begins with
/// `name`, shows the first different part of both, and ends with `hint`, which says how to correct this.
void verify_same(Group& group, const std::string& name, const std::vector<std::string>& parts, const std::string& hint);

} // namespace rg::par
