// The GPUs of this machine as devices that run ops.
#pragma once

#include "core/device.h"

namespace rg::gpu {

/// The GPUs that this build could use, and why there are none: no CUDA in the build, no driver, no GPU.
struct Found {
    std::vector<std::string> ids; // no two GPUs have the same, on whatever machines
    std::string why_none;
};
Found find_devices();

/// Takes a GPU for this process, or shares it with others. Error: the build has no code for it (names what it has).
std::unique_ptr<Device> open_device(int index);

} // namespace rg::gpu
