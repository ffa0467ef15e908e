// Splits flat buffers into chunks for the threads.
#pragma once

#include "core/cpu/thread_pool.h"

#include <algorithm>

namespace rg::cpu {

/// Calls f(begin, count) for chunks of `count` values, in parallel. A chunk is a whole number of cache lines.
template <class F>
void each_chunk(int64_t count, F f) {
    constexpr int64_t kChunk = 1 << 15;
    parallel((count + kChunk - 1) / kChunk,
             [&](int64_t task) { f(task * kChunk, std::min(kChunk, count - task * kChunk)); });
}

} // namespace rg::cpu
