// Finds the GPUs of this machine and opens them as devices that run ops. A program may use it as follows:
//
//     const gpu::FoundGpus found = gpu::find_devices();
//     if (found.gpus.empty()) std::puts(found.why_none.c_str());
//     const auto device = found.gpus.empty() ? nullptr : gpu::open_device(found.gpus[0].index);
//     const Context context{.device = device.get()};
//     const ContextScope scope(context); // from here on, ops run on the GPU, or without one on the CPU
//
// A training program does this itself (models/run/compute.h). CUDA_VISIBLE_DEVICES hides GPUs from both.
#pragma once

#include "core/device.h"

#include <cstdlib>

namespace rg::gpu {

/// The GPUs that this build can use.
struct FoundGpus {
    struct Gpu {
        int index;        // CUDA's number of the GPU, for open_device(); GPUs that this build cannot use count, too
        std::string id;   // unique across machines
        std::string name; // for people, such as "NVIDIA H200"
    };
    std::vector<Gpu> gpus;
    std::string why_none; // if `gpus` is empty, the reason, such as that there is no driver
    /// Returns a list for messages, such as "0 (NVIDIA H200), 1 (NVIDIA H200)".
    std::string list() const {
        std::string text;
        for (const Gpu& gpu : gpus)
            text += (text.empty() ? "" : ", ") + std::to_string(gpu.index) + " (" + gpu.name + ")";
        return text;
    }
};
FoundGpus find_devices();

/// Opens the GPU whose Gpu::index is `index`, for this process. Several processes may share a GPU. Throws Error if
/// find_devices() does not find this GPU, or if CUDA reports an error. On several ranks, see Compute
/// (models/run/compute.h), which gives each a GPU.
std::shared_ptr<Device> open_device(int index);

/// Returns the value of RG_PEER_MEMORY (README.md), or "" if it is not set.
inline std::string_view peer_memory() {
    const char* const value = std::getenv("RG_PEER_MEMORY");
    return value ? value : "";
}

/// The functions with which programs find and open GPUs. Tests replace these functions to supply their own devices.
struct GpuDiscovery {
    FoundGpus (*find)();
    std::shared_ptr<Device> (*open)(int index);
};
/// Returns the functions in use: find_devices() and open_device(), unless a test has replaced them.
inline GpuDiscovery& gpu_discovery() {
    static GpuDiscovery functions{find_devices, open_device};
    return functions;
}

} // namespace rg::gpu
