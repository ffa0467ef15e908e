// bf16 in kernels: converts single values, and pairs packed in 32 bits as tensor cores take them.
//
// The type comes from core/bf16.h. GPUs round by an instruction, which gives the same bits as to_bf16() there, except
// that every NaN becomes 0x7fff.
#pragma once

#include "core/bf16.h"
#include "gpu/cuda.cuh"

namespace rg::RG_GPU {

using rg::bf16;
using rg::to_float;

/// Packs two values into one register. `low` is in the lower half, so it comes first in memory.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
#ifdef __CUDA_ARCH__
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return uint32_t{rg::to_bf16(low).bits} | uint32_t{rg::to_bf16(high).bits} << 16;
#endif
}

__device__ __forceinline__ bf16 to_bf16(float value) { return {uint16_t(pack_bf16(value, 0))}; }

__device__ __forceinline__ float2 unpack_bf16(uint32_t pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

} // namespace rg::RG_GPU
