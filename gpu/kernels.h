// Declares the CUDA implementation of every op in the list of ops.
//
// The .cu files are compiled twice: by nvcc into namespace gpu, and as C++ for the executor (tests/simt) into namespace
// gpu_on_host. RG_GPU is the namespace of the current compilation.
#pragma once

#include "core/op_table.h"
#include "gpu/gpu_traits.h"

namespace rg {
#define RG_DECLARE(name) void name(const Call&);
/// Keeps the tensor cores busy (rates.cu) and returns the number of floating-point operations. `out` has one value for
/// each thread of all blocks.
#define RG_MULTIPLY double multiply(float* out, int blocks, int rounds);
inline constexpr int kMultiplyThreads = 256;
namespace gpu {
RG_OPS(RG_DECLARE)
RG_MULTIPLY
} // namespace gpu
namespace gpu_on_host {
RG_OPS(RG_DECLARE)
RG_MULTIPLY
/// Returns the op's kernel for the executor. Its tensors are in host memory.
Kernel kernel(Op op);
/// The properties that the executor reports to ops; tests may change them.
gpu::GpuTraits& settable_gpu_traits();
} // namespace gpu_on_host
#undef RG_DECLARE
#undef RG_MULTIPLY
} // namespace rg
