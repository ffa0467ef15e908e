// What the ops ask of the GPU that they run on, and which GPUs run what this build was compiled for.
#pragma once

#include <string>
#include <string_view>

namespace rg::gpu {

struct Machine {
    int processors = 1;  // multiprocessors: as many blocks of any size run at once
    bool hopper = false; // the kernels for Hopper GPUs are to be used where there are any: RG_GPU_KERNELS=hopper
};

/// What a GPU says of itself. Its capability 9.0 is sm_90.
struct Capability {
    int major = 0, minor = 0;
    std::string str() const;
};

/// Whether a GPU runs code for one of these targets: "sm_80, sm_90a, compute_90", the build's option gpu_arch.
bool runs_on(std::string_view targets, Capability gpu);
/// Why not, with the GPU's name and what to do; empty if it does.
std::string why_not(const std::string& name, Capability gpu, std::string_view targets);

/// With the kernels that RG_GPU_KERNELS asks for ("" if unset): portable, hopper. Error: others, or where those for
/// Hopper do not run.
Machine machine_of(int processors, Capability gpu, std::string_view wanted, std::string_view targets);

} // namespace rg::gpu
