// Sums and maxima over a warp and over a block, in a fixed order: same bits in every run.
//
// Within a warp by butterfly (5 exchanges, every lane gets the result), over a block by the warps' results in shared
// memory, added in the order of a butterfly as well. Every thread of the warp, or block, must call, with blockDim.y
// and z 1 and, for warps, all 32 lanes there. block_sum has barriers: never in a branch that only some threads take.
#pragma once

#include "gpu/cuda.cuh"

namespace rg::RG_GPU {

/// Sum over the 32 lanes, in every lane; or over every group of so many of them, a power of two.
template <class T>
__device__ __forceinline__ T warp_sum(T value, int lanes = 32) {
    for (int step = lanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

/// The largest, likewise. NaN is passed over, as fmaxf does.
template <class T>
__device__ __forceinline__ T warp_max(T value, int lanes = 32) {
    for (int step = lanes / 2; step > 0; step /= 2) value = max(value, __shfl_xor_sync(0xffffffffu, value, step));
    return value;
}

/// Sum over the block, in every thread. blockDim.x: a multiple of 32, at most 1024.
template <class T>
__device__ __forceinline__ T block_sum(T value) {
    SHARED(T, partial, 32);
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, warps = int(blockDim.x) / 32;
    value = warp_sum(value);
    if (lane == 0) partial[warp] = value;
    __syncthreads();
    value = warp_sum(lane < warps ? partial[lane] : T(0));
    __syncthreads(); // before the next call writes
    return value;
}

} // namespace rg::RG_GPU
