// bf16: the upper half of a float, as a type of its own. One definition for tensors, CPU kernels and CUDA kernels.
//
// Arithmetic is always done in float; these two conversions are all that there is. Tensor cores take the bits as
// they are.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define RG_BOTH_SIDES __host__ __device__
#else
#define RG_BOTH_SIDES
#endif

namespace rg {

struct bf16 {
    uint16_t bits;
};

/// Round to nearest even; NaN stays NaN.
RG_BOTH_SIDES inline bf16 to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return {uint16_t(bits >> 16 | 0x40)}; // a NaN that rounding could lose
    return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

RG_BOTH_SIDES inline float to_float(bf16 value) {
    const uint32_t bits = uint32_t{value.bits} << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}

} // namespace rg
