// The GPUs of this machine as devices that run ops.
#pragma once

#include "core/device.h"

namespace rg::gpu {

/// The GPUs that this build could use, and why there are none: no CUDA in the build, no driver, no GPU, or none that
/// the build has code for.
struct Found {
    std::vector<std::string> ids; // no two GPUs have the same, on whatever machines
    std::string why_none;
};
Found find_devices();

/// Takes the GPU of that place in `ids` for this process, or shares it with others. Error: there is none.
std::unique_ptr<Device> open_device(int place);

/// Where programs find and open GPUs: the two functions above. A test puts devices of its own there.
struct Gpus {
    Found (*find)();
    std::unique_ptr<Device> (*open)(int place);
};
Gpus& gpus();

} // namespace rg::gpu
