// Implements gpu_traits.h. Uses no CUDA, so that builds without CUDA can test it.
#include "gpu/gpu_traits.h"

#include "core/base.h"

#include <algorithm>
#include <charconv>

namespace rg::gpu {

std::string Capability::str() const { return cat("sm_", major, minor); }

// Code for sm_80 runs on GPUs of capability 8.0 and later 8.x, and code for sm_100f on 10.0 and later 10.x. Code for
// sm_90a and compute_90a runs only on 9.0. Code for compute_90 runs on 9.0 and all later capabilities, since the driver
// translates it.
bool runs_on(std::string_view targets, Capability gpu) {
    while (!targets.empty()) {
        const std::string target(targets.substr(0, targets.find(", ")));
        targets.remove_prefix(std::min(targets.size(), target.size() + 2));
        int number = 0;
        std::from_chars(target.data() + target.find('_') + 1, target.data() + target.size(), number);
        const int gpu_number = 10 * gpu.major + gpu.minor;
        const bool exact = target.back() == 'a', any_newer = target[0] == 'c' && target.back() != 'f';
        if (exact ? number == gpu_number : number <= gpu_number && (any_newer || number / 10 == gpu.major)) return true;
    }
    return false;
}

std::string why_not(const std::string& name, Capability gpu, std::string_view targets) {
    if (runs_on(targets, gpu)) return {};
    return cat(name, " is an ", gpu.str(), " GPU, but this build was compiled for ", targets,
               gpu.major < 8 ? "; the oldest supported GPUs are sm_80"
                             : cat("; to compile for it, run: meson configure -Dgpu_arch=", gpu.str()));
}

GpuTraits gpu_traits_of(int sm_count, Capability gpu, std::string_view kernels, std::string_view targets) {
    const bool hopper = gpu.major == 9 && gpu.minor == 0 && targets.find("sm_90a") != targets.npos;
    RG_CHECK(kernels.empty() || kernels == "portable" || kernels == "hopper",
             "RG_GPU_KERNELS: expected portable or hopper, got ", kernels);
    RG_CHECK(hopper || kernels != "hopper", "RG_GPU_KERNELS=hopper: expected an sm_90 GPU and a build for sm_90a, got ",
             gpu.str(), " and a build for ", targets);
    return {sm_count, hopper && kernels != "portable"};
}

} // namespace rg::gpu
