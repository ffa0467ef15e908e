// Sums over a warp or a block, and maxima over a warp, in a fixed order, so that every run gives the same bits. And
// is_last_block() and grid_sum(), with which the last block to end adds the results of all blocks, in a fixed order.
//
// A warp of 32 lanes reduces by a butterfly of 5 exchanges, after which every lane has the result. A block stores the
// results of its warps in shared memory; then each warp reduces them by another butterfly. All threads of the warp, or
// of the block, must call a function together. blockDim.y and blockDim.z must be 1.
#pragma once

#include "gpu/cuda.cuh"

namespace rg::RG_GPU {

/// Sums `value` over each group of `lanes` neighbouring lanes, by default over all 32 lanes of the warp. Returns the
/// sum to every lane of the group. `lanes` is a power of two.
template <class T>
__device__ __forceinline__ T warp_sum(T value, int lanes = 32) {
    for (int step = lanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

/// Returns to every lane the maximum over its group of `lanes` neighbouring lanes. Ignores NaN, as fmaxf does.
template <class T>
__device__ __forceinline__ T warp_max(T value, int lanes = 32) {
    for (int step = lanes / 2; step > 0; step /= 2) value = max(value, __shfl_xor_sync(0xffffffffu, value, step));
    return value;
}

/// Returns the sum over the block to every thread. blockDim.x is a multiple of 32, at most 1024.
template <class T>
__device__ __forceinline__ T block_sum(T value) {
    SHARED(T, partial, 32);
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, warps = int(blockDim.x) / 32;
    value = warp_sum(value);
    if (lane == 0) partial[warp] = value;
    __syncthreads();
    value = warp_sum(lane < warps ? partial[lane] : T(0));
    __syncthreads(); // the next call overwrites `partial`
    return value;
}

/// Returns true to all threads of a block if the block is the last of `blocks` blocks to call this. That block then
/// sees all that the others have written before their calls. *arrivals is one of arrival_counters() (scratch.cuh). It
/// is 0 before the first call, and 0 again after the last.
__device__ __forceinline__ bool is_last_block(unsigned* arrivals, unsigned blocks) {
    SHARED(int, last, 1);
    __threadfence(); // makes this thread's results visible before the block arrives
    __syncthreads();
    if (threadIdx.x == 0) {
        *last = atomicAdd(arrivals, 1u) == blocks - 1;
        if (*last) *arrivals = 0;
    }
    __syncthreads();
    __threadfence(); // keeps later loads from being done before the other blocks arrived
    return *last;
}

/// Sums `value` over all threads of all blocks. Returns true to the threads of the block that ends last, and sets their
/// `total`. `sums` has room for a value per block, and `arrivals` is as for is_last_block().
__device__ __forceinline__ bool grid_sum(double value, double* sums, unsigned* arrivals, double& total) {
    value = block_sum(value);
    if (threadIdx.x == 0) sums[blockIdx.x] = value;
    if (!is_last_block(arrivals, gridDim.x)) return false;
    total = 0;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) total += sums[i];
    total = block_sum(total);
    return true;
}

} // namespace rg::RG_GPU
