// Finds the control groups of this process, and the memory that they leave. Containers and batch systems limit memory
// and CPU time with them (Linux).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace rg {

enum class GroupVersion : uint8_t { one, two };

/// Calls `visit` with the folder of each control group that may limit `controller` ("memory", "cpu") for this process:
/// its own group, and those that contain it. Some of the folders may not exist: a container may have only its own
/// group, mounted in the place of the outermost one. `root` is put before the paths of the system's files, for tests.
void visit_control_groups(const std::string& root, std::string_view controller,
                          const std::function<void(const std::string& folder, GroupVersion version)>& visit);

/// Returns the bytes that processes on this machine can still allocate: the smaller of MemAvailable and the bytes left
/// below the limits of this process's control groups (version 1 or 2). Returns the largest int64_t if the system has no
/// such values. `root` is put before the paths of the system's files, for tests.
int64_t available_memory(const std::string& root = "");

} // namespace rg
