// Defines bf16, the upper half of a float, for tensors, CPU kernels and CUDA kernels.
//
// This header defines the conversions from and to float, and no arithmetic. Kernels convert values to float to add or
// multiply them. Convolutions can multiply bf16 values directly, with the tensor cores of GPUs, or with AMX or
// AVX512-BF16 on CPUs. These add the products in float.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define RG_HOST_DEVICE __host__ __device__
#else
#define RG_HOST_DEVICE
#endif

namespace rg {

struct bf16 {
    uint16_t bits;
};

/// Rounds to the nearest bf16, ties to even. NaN stays NaN.
RG_HOST_DEVICE inline bf16 to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return {uint16_t(bits >> 16 | 0x40)}; // rounding could make infinity of NaN
    return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

RG_HOST_DEVICE inline float to_float(bf16 value) {
    const uint32_t bits = uint32_t{value.bits} << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}

} // namespace rg
