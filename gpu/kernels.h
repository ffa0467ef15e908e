// For every op in RG_OPS (core/op_table.h), declares the host function that launches its CUDA kernels.
//
// All .cu files except device.cu are compiled twice: by nvcc into namespace gpu, and as C++ for the executor
// (tests/simt) into namespace gpu_on_host. The macro RG_GPU is the namespace of the current compilation.
#pragma once

#include "core/op_table.h"
#include "gpu/gpu_traits.h"

#include <algorithm>

struct CUstream_st; // the type that CUDA's cudaStream_t points to

namespace rg {
/// For an op of RG_OPS, returns its element of `kernels`, which has the order of kOps. For any other op, returns
/// OpRow::gpu, which is null if the op has no kernel.
inline Kernel kernel_of(Op op, std::span<const Kernel, std::size(kOps)> kernels) {
    const auto position = size_t(std::find(std::begin(kOps), std::end(kOps), op) - std::begin(kOps));
    return position < kernels.size() ? kernels[position] : op->gpu;
}

#define RG_DECLARE(name) void name(const Call&);
// The kernels that belong to no op:
/// multiply() launches a kernel that keeps the tensor cores busy (rates.cu), and returns the number of its
/// floating-point operations, which is proportional to `rounds`. `out` has room for one value per thread of all blocks.
/// sum_vectors() launches the kernel of Device::sum() (sum_vectors.cu).
#define RG_OTHER_KERNELS                                                                                               \
    double multiply(float* out, int blocks, int rounds);                                                               \
    void sum_vectors(std::span<std::byte* const> from, std::span<std::byte* const> to, size_t count, CUstream_st*);
inline constexpr int kMultiplyThreads = 256, kSumThreads = 256;
namespace gpu {
RG_OPS(RG_DECLARE)
RG_OTHER_KERNELS
} // namespace gpu
namespace gpu_on_host {
RG_OPS(RG_DECLARE)
RG_OTHER_KERNELS
/// Returns the function of an op of RG_OPS that was compiled for the executor. The function takes tensors in host
/// memory. For any other op, returns OpRow::gpu.
Kernel kernel(Op op);
/// Returns the traits that the executor reports to ops. Tests may change them.
gpu::GpuTraits& settable_gpu_traits();
} // namespace gpu_on_host
#undef RG_DECLARE
#undef RG_OTHER_KERNELS
} // namespace rg
