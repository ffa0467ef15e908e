// Shared by the matrix products of conv.cu and conv_grad.cu: operands in shared memory as planes of bf16.
//
// bf16 values have one plane. f32 values have two: each value is rounded to the sum of two bf16, a high and a low part.
// Three products of parts replace a product of f32; that of the low parts is left out. So a product has a relative
// error of 2^-15 at most, and of 2^-18 as a root mean square over varied values. The root mean square error of sums
// stays below 1e-5 of their root mean square (core/README.md). If a value is infinite, or so large that its high part
// is, its products are NaN.
#pragma once

#include "gpu/mma.cuh"
#include "gpu/octets.cuh"

namespace rg::RG_GPU {

/// Number of planes for values of type T.
template <class T>
constexpr int kPlanes = std::is_same_v<T, float> ? 2 : 1;

/// Stores 8 values of a tensor of type T: in bf16 to one plane, in f32 their high and low parts to two planes, which
/// are `plane` values apart.
template <class T>
__device__ __forceinline__ void store_planes(bf16* to, int, uint4 eight) {
    store_octet(to, eight);
}
template <class T>
__device__ __forceinline__ void store_planes(bf16* to, int plane, const Octet& octet) {
    const uint4 high = pack_8(octet.v);
    store_octet(to, high);
    if constexpr (kPlanes<T> == 2) {
        float low[8];
        unpack_8(high, low);
        RG_UNROLL
        for (int i = 0; i < 8; ++i) low[i] = octet.v[i] - low[i];
        store_octet(to + plane, pack_8(low));
    }
}

/// Computes sum(m, n) += rows[m] x columns n for m < 2 and n < kColumns. rows[m] and the halves of `columns` are
/// operands of mma_bf16_16x8x16, and sum(m, n) returns a reference to the float[4] of a result.
template <int kColumns, class Sum>
__device__ __forceinline__ void multiply_2x2(const uint32_t (&rows)[2][4], const uint32_t (&columns)[4],
                                             const Sum& sum) {
    const uint32_t first[2] = {columns[0], columns[1]}, second[2] = {columns[2], columns[3]};
    RG_UNROLL
    for (int m = 0; m < 2; ++m) {
        mma_bf16_16x8x16(sum(m, 0), rows[m], first);
        if constexpr (kColumns == 2) mma_bf16_16x8x16(sum(m, 1), rows[m], second);
    }
}

/// Does the same for operands in planes. With two planes, adds to the results outside of the tensor cores, which
/// truncate instead of rounding (Ootomo and Yokota, 2022).
template <int kColumns, int kPlanes, class Sum>
__device__ __forceinline__ void multiply_planes(const uint32_t (&rows)[kPlanes][2][4],
                                                const uint32_t (&columns)[kPlanes][4], const Sum& sum) {
    if constexpr (kPlanes == 1) {
        multiply_2x2<kColumns>(rows[0], columns[0], sum);
    } else {
        float part[2][kColumns][4] = {};
        const auto part_of = [&](int m, int n) -> float(&)[4] { return part[m][n]; };
        multiply_2x2<kColumns>(rows[1], columns[0], part_of); // low x high
        multiply_2x2<kColumns>(rows[0], columns[1], part_of);
        multiply_2x2<kColumns>(rows[0], columns[0], part_of);
        RG_UNROLL
        for (int m = 0; m < 2; ++m) RG_UNROLL
        for (int n = 0; n < kColumns; ++n) RG_UNROLL
        for (int i = 0; i < 4; ++i) sum(m, n)[i] += part[m][n][i];
    }
}

} // namespace rg::RG_GPU
