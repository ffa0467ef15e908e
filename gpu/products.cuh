// Shared by the matrix products of conv.cu and conv_grad.cu: f32 products on tensor cores.
#pragma once

#include "ringgrad/gpu/mma.cuh"

namespace rg::RG_GPU {

/// Splits `value` into high + low, two tf32 values that together hold at least 22 significant bits.
__device__ __forceinline__ void split(float value, uint32_t& high, uint32_t& low) {
    high = to_tf32(value);
    const float rest = value - __uint_as_float(high);
    low = rest == rest ? to_tf32(rest) : 0; // if `value` is infinite, `rest` is NaN
}

/// Computes d += a b with a relative error of about 1e-6. Multiplies the operands' upper and lower 11 bits in three
/// tf32 products. Adds to d outside of the tensor cores, which truncate instead of rounding (Ootomo and Yokota, 2022).
/// The fragments are those of mma_tf32_16x8x8.
__device__ __forceinline__ void mma_f32_16x8x8(float (&d)[4], const float (&a)[4], const float (&b)[2]) {
    uint32_t a_high[4], a_low[4], b_high[2], b_low[2];
    RG_UNROLL
    for (int i = 0; i < 4; ++i) split(a[i], a_high[i], a_low[i]);
    RG_UNROLL
    for (int i = 0; i < 2; ++i) split(b[i], b_high[i], b_low[i]);
    float sum[4] = {};
    mma_tf32_16x8x8(sum, a_low, b_high);
    mma_tf32_16x8x8(sum, a_high, b_low);
    mma_tf32_16x8x8(sum, a_high, b_high);
    RG_UNROLL
    for (int i = 0; i < 4; ++i) d[i] += sum[i];
}

} // namespace rg::RG_GPU
