// A training as one of many: what its run tells whoever started it, and asks.
#pragma once

#include "core/json.h"

namespace rg {

/// Whoever started a training. Every rank has one.
class Trial {
public:
    virtual ~Trial() = default;
    /// Whether it is a program by itself: it may print, and signals that stop it are its own to take.
    virtual bool alone() const { return true; }
    /// On the group's first rank: a line of metrics.jsonl, of a step or of an epoch. True: end now, as after a signal.
    virtual bool report(const Json& /*line*/) { return false; }
    /// There too: the training is over, or has been stopped before its time, by this or by a file in its folder.
    virtual void end(bool /*stopped*/) {}
    /// Called now and then where there is nothing to report.
    virtual void pulse() {}
};

} // namespace rg
