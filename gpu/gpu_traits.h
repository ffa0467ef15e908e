// The GPU properties that ops depend on, and a check that a GPU can run the code of this build.
#pragma once

#include <string>
#include <string_view>

namespace rg::gpu {

struct GpuTraits {
    int sm_count = 1;            // number of SMs
    bool hopper_kernels = false; // true if ops use the kernels of *_hopper.cu wherever these cover the case
};

/// Compute capability of a GPU, for example major = 9 and minor = 0 for sm_90.
struct Capability {
    int major = 0, minor = 0;
    std::string str() const; // returns a text such as "sm_90"
};

/// Returns true if the GPU can run code for one of the targets. `targets` holds the values of the build option
/// gpu_arch, for example "sm_80, sm_90a, compute_90".
bool runs_on(std::string_view targets, Capability gpu);
/// Returns an empty text if the GPU can run code for one of the targets. Otherwise, returns an error text with the name
/// of the GPU, the reason, and a remedy if there is one.
std::string why_not(const std::string& name, Capability gpu, std::string_view targets);

/// Returns the traits of a GPU. `kernels` is the value of RG_GPU_KERNELS: "portable", "hopper", or "" if unset, which
/// takes the Hopper kernels where the GPU and the build can run them. Throws Error for other values, and for "hopper"
/// if they cannot.
GpuTraits gpu_traits_of(int sm_count, Capability gpu, std::string_view kernels, std::string_view targets);

} // namespace rg::gpu
