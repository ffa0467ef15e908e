// A check of the Hopper kernels on the GPU at hand, before a program relies on them.
#pragma once

#include "ringgrad/core/device.h"
#include "ringgrad/gpu/gpu_traits.h"

#include <string>

namespace rg::gpu {

/// Runs each kernel of *_hopper.cu on a few small images, and compares the results with those of the portable
/// kernels. Returns a text that names the first convolution whose results differ, or an empty text. `traits` are those
/// that the device's ops read. The function changes them, and restores them at the end.
std::string find_hopper_mismatch(Device& device, GpuTraits& traits);

/// Remembers in a file in user_cache() that the check has found nothing, so that later programs need not run it.
/// Without such a folder, or if it cannot be written, remembers nothing.
class PassedCheck {
public:
    /// `what` names all that the result depends on: the GPU, its driver, nvcc and the build. A build from changed files is
    /// not known by its commit, so nothing is remembered of it.
    PassedCheck(const std::string& what, std::string_view build);
    bool known() const;
    void remember() const noexcept;

private:
    std::string path_;
};

} // namespace rg::gpu
