// A check of the Hopper kernels on the GPU at hand, before a program relies on them.
#pragma once

#include "ringgrad/core/device.h"
#include "ringgrad/gpu/gpu_traits.h"

namespace rg::gpu {

/// Runs each kernel of *_hopper.cu on a few small images, and compares the results with those of the portable
/// kernels. Returns a text that names the first convolution whose results differ, or an empty text. `traits` are those
/// that the device's ops read. The function changes them, and restores them at the end.
std::string find_hopper_mismatch(Device& device, GpuTraits& traits);

} // namespace rg::gpu
