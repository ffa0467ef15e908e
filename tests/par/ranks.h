// Runs the cases that every Link has to pass. rg_tests runs them on ranks that are threads (tests/thread_link.cpp), and
// mpi_par runs them on the ranks of its MPI job.
#pragma once

#include "core/checksum.h"
#include "par/task_pool.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

namespace rg::par {

/// Calls `body` on each rank of a job. In rg_tests, does so for jobs of 1 to 9 ranks on one node. A body that throws
/// ends the case, and in mpi_par the whole job.
void on_ranks(const std::function<void(Link&)>& body);
/// Like on_ranks(). In rg_tests, also does so for all numbers of ranks per node.
void on_nodes(const std::function<void(Link&)>& body);

/// Returns an integer, so that a sum of nine is exact in float in any order. Values differ by rank and index, so a
/// permuted, doubled or missing chunk changes the sum.
inline float value_of(size_t i, int rank) { return float((i * 31 + 7) % 1009 * size_t(rank + 1) + size_t(rank)); }
/// Returns the sum of value_of() over the ranks of a link.
inline float sum_of(size_t i, const Link& link) {
    float sum = 0;
    for (int r = 0; r < link.size(); ++r) sum += value_of(i, r);
    return sum;
}

/// A task that reports until it is cancelled. Returns the number of reports.
inline Json until_cancelled(TaskContext& context, const Json&) {
    int64_t times = 0;
    for (; !context.cancelled(); ++times) {
        context.report(times);
        std::this_thread::sleep_for(std::chrono::microseconds(100)); // real tasks take longer
    }
    return times;
}

/// Collective. Returns true if all ranks hold the same bits.
inline bool same_on_all(Group& group, std::span<const float> values) {
    const std::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    const std::vector<std::string> sums = group.allgather(cat(checksum(bytes)), "checksums");
    return std::count(sums.begin(), sums.end(), sums[0]) == std::ssize(sums);
}

} // namespace rg::par
