// Checks that a machine has the memory that its ranks are about to allocate.
//
// Memory that the system has promised may not be there when it is written to: then the kernel kills a rank, minutes
// later and without a word. So programs sum what they plan before they take it, and end with an error instead.
#pragma once

#include "core/accelerate.h"
#include "core/parameters.h"
#include "par/group.h"

#include <compare>
#include <functional>
#include <initializer_list>
#include <string>

namespace rg {

/// Bytes that processes of this machine can still take: MemAvailable, or what the limits of this process's control
/// groups (version 1 or 2) leave, whichever is less; the largest integer where the system does not say. `root` is put
/// before the paths of the system's files, for tests.
int64_t available_memory(const std::string& root = "");

/// The name of this machine, and the number of its present boot: many a machine is called "localhost".
struct Host {
    std::string name, boot;
    auto operator<=>(const Host&) const = default;
};
Host this_host();

/// Throws on all ranks if those of one host together are about to take more than is available there. `bytes`: this
/// rank's; `what`: the memory's use, and `advice`: how to need less, both for the message. Collective.
void check_memory(par::Group& group, int64_t bytes, const std::string& what, const std::string& advice,
                  int64_t available = available_memory(), const Host& host = this_host());

/// check_memory() for the buffers of a training with SGD on the CPU, from the bytes of the values of all parameters:
/// values, gradients (also those that ranks share), velocity and, on rank 0, a checkpoint.
void check_parameter_memory(par::Group& group, int64_t parameter_bytes, const std::string& advice);

/// check_memory() for a training on the CPU that is about to begin: for the plans that `plan` makes in the networks
/// and, on rank 0, for a checkpoint. Makes these plans without their memory, and drops them and all others. Collective.
void check_planned_memory(par::Group& group, std::initializer_list<Accelerated*> networks, const Parameters& parameters,
                          const std::function<void()>& plan, const std::string& advice,
                          int64_t available = available_memory());

/// Bytes that rank 0 takes for a checkpoint of parameters of so many bytes, with the optimizer's two values of each.
constexpr int64_t checkpoint_memory(int64_t parameter_bytes) { return 3 * parameter_bytes; }

} // namespace rg
