// The interface between a training and the program that started it.
#pragma once

#include "ringgrad/core/json.h"

namespace rg {

/// Receives the reports of a training, and may stop it. Every rank has one. This base class serves a training that is a
/// program by itself; a sweep derives from it (sweep/trials.cpp).
class Trial {
public:
    virtual ~Trial() = default;
    /// True if the training is a program by itself. Then it prints and handles signals.
    virtual bool standalone() const { return true; }
    /// Called on the group's first rank with each line that is added to metrics.jsonl. If it returns true, the training
    /// stops after one more step, or at the end of the epoch.
    virtual bool report(const Json& /*line*/) { return false; }
    /// Called on the group's first rank when TrainingRun ends without an error. `stopped`: early, by a stop request.
    virtual void end(bool /*stopped*/) {}
    /// Called regularly during long work without reports. A sweep then handles messages of its task pool
    /// (par/task_pool.h).
    virtual void pulse() {}
};

} // namespace rg
