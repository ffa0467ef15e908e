// Runs the tasks of a kernel on the threads of the context.
#pragma once

#include "core/context.h"
#include "core/cpu/thread_pool.h"

#include <algorithm>

namespace rg {

/// Returns the number of threads that parallel() uses.
inline int64_t thread_count() { return context().threads ? context().threads->size() : 1; }

/// Calls f(task) for every task in [0, tasks) on the context's pool. A single task, or all tasks if there is no
/// pool, run on the calling thread.
template <class F>
void parallel(int64_t tasks, F&& f) {
    ThreadPool* const pool = context().threads;
    if (pool && tasks > 1) return pool->run(tasks, f);
    for (int64_t task = 0; task < tasks; ++task) f(task);
}

/// One of `shares` parts of some work, as equal as whole items allow.
struct Share {
    int64_t index = 0, shares = 1;
    /// Return the first item of the share, and the item after its last, when the work consists of `items` items.
    int64_t begin(int64_t items) const { return items * index / shares; }
    int64_t end(int64_t items) const { return items * (index + 1) / shares; }
};

/// Returns the number of shares into which each of `items` items should be split, so that all threads have about equal
/// work. An item takes `steps` multiply-adds or comparisons.
inline int64_t shares_of(int64_t items, double steps) {
    constexpr double kLeastSteps = 1 << 18; // per share; with fewer, several threads are no faster than one
    const int64_t threads = thread_count();
    int64_t shares = 1;
    while (items * shares % threads != 0 && items * shares < 4 * threads && steps >= kLeastSteps * double(shares + 1))
        ++shares;
    return shares;
}

/// Element-wise kernels split values into chunks for the threads. Each chunk but the last has kChunk values, which fill
/// whole cache lines.
inline constexpr int64_t kChunk = 1 << 15;
/// Returns the number of chunks that `count` values take.
inline int64_t chunks_of(int64_t count) { return (count + kChunk - 1) / kChunk; }

/// Splits `count` values into chunks, and calls f(first value, size of the chunk) for all of them in parallel. Chunk i
/// begins at value i * chunk.
template <class F>
void each_chunk(int64_t count, F f, int64_t chunk = kChunk) {
    parallel((count + chunk - 1) / chunk,
             [&](int64_t task) { f(task * chunk, std::min(chunk, count - task * chunk)); });
}

} // namespace rg
