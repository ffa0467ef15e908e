// Counts the CPU cores of this process.
#pragma once

#include <string>

namespace rg {

/// Returns the number of logical cores that the calling thread may use by its affinity, at least 1.
int affinity_cores();

/// Returns the number of cores whose CPU time this process may use: the smallest quota of its control groups (version 1
/// or 2), rounded up. Returns the largest int if there is none. `root` is put before the paths of the system's files,
/// for tests.
int core_quota(const std::string& root = "");

/// Returns the smaller of affinity_cores() and core_quota(): the number of threads that can run at the same time.
int available_cores();

} // namespace rg
