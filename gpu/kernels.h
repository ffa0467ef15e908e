// Declares every op's CUDA implementation, from the list of ops, as core/kernels.h does for the CPU.
//
// The .cu files are compiled twice: by nvcc, into namespace gpu, and as C++ for the executor of simt/, into namespace
// gpu_on_host. RG_GPU is whichever it is.
#pragma once

#include "core/op_table.h"
#include "gpu/machine.h"

namespace rg {
#define RG_DECLARE(name) void name(const Call&);
/// Keeps tensor cores busy (rates.cu); returns the operations. `out` has a value for each thread of these blocks.
#define RG_MULTIPLY double multiply(float* out, int blocks, int rounds);
inline constexpr int kMultiplyThreads = 256;
namespace gpu {
RG_OPS(RG_DECLARE)
RG_MULTIPLY
} // namespace gpu
namespace gpu_on_host {
RG_OPS(RG_DECLARE)
RG_MULTIPLY
/// By op. Tensors are in the host's memory.
Kernel kernel(Op op);
/// What the ops take the executor for.
gpu::Machine& settable_machine();
} // namespace gpu_on_host
#undef RG_DECLARE
#undef RG_MULTIPLY
} // namespace rg
