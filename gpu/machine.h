// What the ops ask of the GPU that they run on.
#pragma once

namespace rg::gpu {

struct Machine {
    int processors = 1;  // multiprocessors: as many blocks of any size run at once
    bool hopper = false; // the kernels for Hopper GPUs are to be used where there are any: RG_GPU_KERNELS=hopper
};

} // namespace rg::gpu
