// Counts the CPU cores of this process.
#pragma once

namespace rg {

/// Returns the number of logical cores that this process may use. On systems other than Linux, returns the number of
/// all logical cores.
int available_cores();

} // namespace rg
