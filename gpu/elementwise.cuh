// Launches a kernel for each value of tensors. The kernels are functors, whose names profiles show as the template
// argument of elementwise_kernel.
#pragma once

#include "ringgrad/gpu/scratch.cuh"
#include "ringgrad/gpu/values.cuh"

namespace rg::RG_GPU {

constexpr int kThreads = 256;

/// Calls f(i) for every i < count.
template <class F>
__global__ void __launch_bounds__(kThreads) elementwise_kernel(int64_t count, F f) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i < count) f(i);
}

template <class F>
void elementwise(int64_t count, const F& f) {
    if (count > 0) RG_LAUNCH(elementwise_kernel<F>, blocks_for(count, kThreads), kThreads, 0, stream(), count, f);
}

} // namespace rg::RG_GPU
