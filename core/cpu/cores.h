// Counts the CPU cores of this process.
#pragma once

namespace rg {

/// Returns the number of logical cores that this process may use, or on systems other than Linux, of all logical cores.
int available_cores();

} // namespace rg
