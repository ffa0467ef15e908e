// The interface between a training and the program that started it.
#pragma once

#include "ringgrad/core/json.h"

namespace rg {

/// Receives the reports of a training, and may stop it. Every rank has one. This base class is for a training that is
/// started by itself.
class Trial {
public:
    virtual ~Trial() = default;
    /// True if the training is a program by itself. Then it prints and handles signals.
    virtual bool standalone() const { return true; }
    /// Called on the group's first rank with each line of metrics.jsonl. Returns true if the training should stop now,
    /// as after a signal.
    virtual bool report(const Json& /*line*/) { return false; }
    /// Called on the group's first rank when the training ends. `stopped` is true if a stop request ended it early.
    virtual void end(bool /*stopped*/) {}
    /// Called regularly during long work without reports, so that a task pool (par/task_pool.h) can serve its other
    /// ranks.
    virtual void pulse() {}
};

} // namespace rg
