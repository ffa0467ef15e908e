// Runs ops on several CPU threads.
#pragma once

#include "core/context.h"
#include "core/cpu/cores.h"
#include "core/cpu/thread_pool.h"

namespace rg {

/// While a CpuScope exists, the ops of the thread that made it run on `threads` threads of the CPU, or on one per
/// available core if `threads` is 0. Ranks of a machine should divide its cores:
/// max(1, available_cores() / group.local_size()). Replaces the whole context of the thread (context.h), including a
/// device and a SyncGroup.
/// Outside of every ContextScope, ops run on the calling thread alone.
class CpuScope {
public:
    explicit CpuScope(int threads = 0) : pool_(threads ? threads : available_cores()) {}

private:
    ThreadPool pool_;
    const Context context_{.threads = &pool_};
    const ContextScope scope_{context_};
};

} // namespace rg
