// Counts what the whole process allocates with operator new, so that a test can show that something allocates nothing.
#pragma once

namespace rg {

/// Allocations so far; -1 where they cannot be counted, under sanitizers, which bring their own operators.
long allocations();

} // namespace rg
