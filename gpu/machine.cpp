// See machine.h and, for gpus(), device.h. No CUDA here, so that it is tested where there is none.
#include "gpu/machine.h"

#include "core/base.h"
#include "gpu/device.h"

#include <algorithm>
#include <cstdlib>

namespace rg::gpu {

std::string Capability::str() const { return cat("sm_", major, minor); }

// sm_80 is machine code, for capability 8.0 and the later 8.x; sm_90a and compute_90a are for 9.0 alone, sm_100f for
// 10.x; compute_90 is translated by the driver, for 9.0 and whatever came after.
bool runs_on(std::string_view targets, Capability gpu) {
    while (!targets.empty()) {
        const std::string target(targets.substr(0, targets.find(", ")));
        targets.remove_prefix(std::min(targets.size(), target.size() + 2));
        const size_t digits = target.find('_') + 1;
        const int number = std::atoi(target.c_str() + digits), mine = 10 * gpu.major + gpu.minor;
        const bool this_alone = target.back() == 'a', newer = target[0] == 'c' && target.back() != 'f';
        if (this_alone ? number == mine : number <= mine && (newer || number / 10 == gpu.major)) return true;
    }
    return false;
}

std::string why_not(const std::string& name, Capability gpu, std::string_view targets) {
    if (runs_on(targets, gpu)) return {};
    return cat(name, " is a GPU of ", gpu.str(), ", and this build was compiled for ", targets,
               gpu.major < 8 ? "; sm_80 is the oldest that there are kernels for"
                             : cat("; meson configure -Dgpu_arch=", gpu.str(), " compiles for it"));
}

Machine machine_of(int processors, Capability gpu, std::string_view wanted, std::string_view targets) {
    Machine machine{.processors = processors};
    if (wanted.empty() || wanted == "portable") return machine;
    RG_CHECK(wanted == "hopper", "RG_GPU_KERNELS: expected portable or hopper, got ", wanted);
    RG_CHECK(gpu.major == 9 && gpu.minor == 0 && targets.find("sm_90a") != targets.npos,
             "RG_GPU_KERNELS: hopper takes a GPU of sm_90 and a build for sm_90a, got ", gpu.str(), " and a build for ",
             targets);
    machine.hopper = true;
    return machine;
}

Gpus& gpus() {
    static Gpus here{find_devices, open_device};
    return here;
}

} // namespace rg::gpu
