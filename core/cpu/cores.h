// Counts the CPU cores of this process.
#pragma once

namespace rg {

/// Returns the number of cores that this process may use.
int available_cores();

} // namespace rg
