// A kernel with asynchronous copies into two buffers by turns, whole or with one of its parts left out.
#pragma once

#include "gpu/async_copy.cuh"

namespace rg::RG_GPU {

/// What a test may leave out, to see whether the executor finds it.
struct Pipeline {
    bool wait = true, barrier_after_wait = true, barrier_before_fetch = true;
};

/// Sums of neighbours, over tiles that are fetched one ahead; the last tile is cut off at n.
static __global__ void pipeline_kernel(const float* in, float* out, int n, Pipeline parts) {
    DYNAMIC_SHARED(float, tiles); // two of 4 blockDim.x
    const int thread = int(threadIdx.x), tile = 4 * int(blockDim.x), count = (n + tile - 1) / tile;
    const auto fetch = [&](int i) {
        const int begin = i * tile + 4 * thread, left = max(0, min(4, n - begin));
        if (i < count) cp_async_16(tiles + i % 2 * tile + 4 * thread, in + (left ? begin : 0), 4 * left);
        cp_async_commit();
    };
    fetch(0);
    for (int i = 0; i < count; ++i) {
        fetch(i + 1);
        if (parts.wait) cp_async_wait<1>();
        if (parts.barrier_after_wait) __syncthreads();
        const float* const now = tiles + i % 2 * tile;
        for (int j = thread; j < tile && i * tile + j < n; j += int(blockDim.x))
            out[i * tile + j] = now[j] + (j + 1 < tile ? now[j + 1] : 0);
        if (parts.barrier_before_fetch) __syncthreads();
    }
    cp_async_wait<0>();
}

} // namespace rg::RG_GPU
