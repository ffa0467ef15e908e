// Checks that a machine has the memory that its ranks are about to allocate.
//
// Memory that the system has promised may not be there when it is written to: then the kernel kills a rank, minutes
// later and without a word. So programs sum what they plan before they take it, and end with an error instead.
#pragma once

#include "par/group.h"

namespace rg {

/// Bytes that processes of this machine can still take: MemAvailable, or what the limits of this process's control
/// groups (version 1 or 2) leave, whichever is less; the largest integer where the system does not say. `root` is put
/// before the paths of the system's files, for tests.
int64_t available_memory(const std::string& root = "");

/// Throws on all ranks if those of one machine together are about to take more than is available there. `bytes`: this
/// rank's; `what`: the memory's use, and `advice`: how to need less, both for the message. Collective.
void check_memory(par::Group& group, int64_t bytes, const std::string& what, const std::string& advice,
                  int64_t available = available_memory());

} // namespace rg
