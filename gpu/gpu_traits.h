// The GPU properties that ops depend on, and the check whether a GPU can run this build's code.
#pragma once

#include <string>
#include <string_view>

namespace rg::gpu {

struct GpuTraits {
    int sm_count = 1;            // this many blocks of any size run at once
    bool hopper_kernels = false; // ops use a Hopper kernel where there is one (RG_GPU_KERNELS=hopper)
};

/// Compute capability of a GPU. Capability 9.0 is sm_90.
struct Capability {
    int major = 0, minor = 0;
    std::string str() const; // "sm_90"
};

/// Returns true if the GPU can run code for one of the targets. `targets` is the build option gpu_arch, for example
/// "sm_80, sm_90a, compute_90".
bool runs_on(std::string_view targets, Capability gpu);
/// Returns an empty text if the GPU can run code for one of the targets. Otherwise, returns the reason and a remedy.
std::string why_not(const std::string& name, Capability gpu, std::string_view targets);

/// `kernels` is the value of RG_GPU_KERNELS: "portable", "hopper", or "" if unset. Throws Error for other values, and
/// for "hopper" if the GPU or the build cannot run the Hopper kernels.
GpuTraits gpu_traits_of(int sm_count, Capability gpu, std::string_view kernels, std::string_view targets);

} // namespace rg::gpu
