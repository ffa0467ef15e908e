// Checks that a machine has the memory that its ranks are about to allocate.
//
// Linux grants more memory than it has. If a process later writes to more memory than there is, the kernel may kill it
// without a message, perhaps after minutes of training. So programs add up their needs first, and end with an
// error if the sum is too large.
#pragma once

#include "core/accelerate.h"
#include "core/control_groups.h"
#include "par/group.h"

#include <compare>
#include <functional>
#include <initializer_list>
#include <string>

namespace rg {

/// Returns a text like "1.5 GiB".
std::string gibibytes(int64_t bytes);

/// A machine's name and the ID of its current boot, since several machines may be named "localhost".
struct Host {
    std::string name, boot;
    auto operator<=>(const Host&) const = default;
};
Host this_host();

/// Collective. Throws on all ranks if the ranks of one host together need more memory than is available there. `bytes`
/// is the need of this rank. For the message, `what` names the use of the memory, and `advice` says how to need less.
/// Tests set `available` and `host`.
void check_memory(par::Group& group, int64_t bytes, const std::string& what, const std::string& advice,
                  int64_t available = available_memory(), const Host& host = this_host());

/// Returns about how many bytes a rank needs for the copies that rank 0 writes to files: a checkpoint with all
/// `optimizer_buffers` of the optimizer, and the best and the last model. The values of the parameters take
/// `parameter_bytes`, and so does each buffer.
inline int64_t checkpoint_memory(const par::Group& group, int64_t parameter_bytes, int64_t optimizer_buffers) {
    return group.rank() == 0 ? (3 + optimizer_buffers) * parameter_bytes : 0;
}

/// Collective. Runs check_memory() for the buffers of a training on the CPU. These are the values, the gradients, the
/// optimizer's `optimizer_buffers` and, on rank 0, the copies of checkpoint_memory(). With several ranks or workers,
/// Group::allocate_shared() holds gradients for each worker of a rank, and the first buffer of gradients exists until
/// they move there. `parameter_bytes` is the size of the values.
void check_parameter_memory(par::Group& group, int64_t parameter_bytes, int64_t optimizer_buffers,
                            const std::string& advice);

/// Collective. Runs check_memory() before a training on the CPU starts. Calls `plan` in a dry run: it makes plans in
/// the caches of `networks`, whose memory is not allocated. Counts all plans in these caches, and `other_bytes` that
/// this rank needs beside them. Then clears the caches.
void check_planned_memory(par::Group& group, std::initializer_list<Accelerated*> networks, int64_t other_bytes,
                          const std::function<void()>& plan, const std::string& advice,
                          int64_t available = available_memory());

} // namespace rg
