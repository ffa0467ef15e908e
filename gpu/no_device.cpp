// Implements device.h for a build without CUDA: there are no GPUs.
#include "core/base.h"
#include "gpu/device.h"

namespace rg::gpu {

FoundGpus find_devices() { return {{}, "this build has no CUDA"}; }

std::shared_ptr<Device> open_device(int) {
    fail("device cuda: this build has no CUDA; install the CUDA toolkit and build again with -Dcuda=enabled");
}

} // namespace rg::gpu
