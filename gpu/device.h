// Finds the GPUs of this machine and opens them as devices that run ops.
#pragma once

#include "ringgrad/core/device.h"

namespace rg::gpu {

/// The GPUs that this build can use.
struct FoundGpus {
    std::vector<std::string> ids; // one per GPU, unique across machines
    std::string why_none;         // if ids is empty, the reason, such as no driver, or no GPU that this build supports
};
FoundGpus find_devices();

/// Opens GPU `index` of find_devices() for this process. Several processes may share a GPU. Throws Error if there is no
/// such GPU, or if CUDA reports an error. On several ranks, see Machine (models/run/machine.h), which gives each a GPU.
std::shared_ptr<Device> open_device(int index);

/// The functions with which programs find and open GPUs. Tests replace these functions to supply their own devices.
struct GpuFunctions {
    FoundGpus (*find)();
    std::shared_ptr<Device> (*open)(int index);
};
/// Initially find_devices() and open_device().
inline GpuFunctions& gpu_functions() {
    static GpuFunctions functions{find_devices, open_device};
    return functions;
}

} // namespace rg::gpu
