// Defines names of CUDA C++ for other compilers: qualifiers, indices, vector types, arithmetic.
//
// Names and meanings are those of CUDA. Functions that can detect a fault have one more argument with a default value:
// the site of the call. Only the names that the project uses are defined. These are missing on purpose: __shared__
// (SHARED adds redzones), float atomics (their order is not fixed), and __activemask (kernels pass explicit masks).
#pragma once

#include "tests/simt/executor.h"

#include <algorithm>
#include <bit>
#include <math.h>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

#define threadIdx (::std::as_const(::rg::simt::thread_index))
#define blockIdx (::std::as_const(::rg::simt::block_index))
#define blockDim (::std::as_const(::rg::simt::block_extent))
#define gridDim (::std::as_const(::rg::simt::grid_extent))

struct dim3 : rg::simt::Index3 {
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : Index3{x, y, z} {}
};
using cudaStream_t = struct CUstream_st*;

// ---- vector types, with the alignment that a single load instruction needs ----
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// ---- arithmetic ----
inline int min(int a, int b) { return std::min(a, b); }
inline int max(int a, int b) { return std::max(a, b); }
inline long min(long a, long b) { return std::min(a, b); }
inline long max(long a, long b) { return std::max(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }

inline float __fdividef(float a, float b) { return a / b; }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }

// ---- memory ----
// These return the old value.
inline unsigned atomicMax(unsigned* to, unsigned value) {
    unsigned before = __atomic_load_n(to, __ATOMIC_RELAXED);
    while (value > before &&
           !__atomic_compare_exchange_n(to, &before, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return before;
}

inline unsigned atomicAdd(unsigned* to, unsigned value) { return __atomic_fetch_add(to, value, __ATOMIC_RELAXED); }
/// Blocks run one after the other, so each sees what the earlier ones have written.
inline void __threadfence() {}

// ---- threads of a block, lanes of a warp ----
inline void __syncthreads(rg::simt::Site site = rg::simt::Site::here(__builtin_FILE(), __builtin_LINE())) {
    rg::simt::block_barrier(site);
}
