// Counts the allocations of the process with operator new, so that a test can show that code allocates nothing.
#pragma once

namespace rg {

/// Returns the number of allocations so far. Returns -1 under sanitizers, which have their own operator new.
long allocations();

} // namespace rg
