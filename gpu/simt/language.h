// The names of CUDA C++ for a compiler that does not know them: qualifiers, indices, vector types, arithmetic.
//
// Same names, same meaning, one argument more where a call can go wrong: the place of the call, which fills itself in.
// Macros only where a function cannot do it, or where the C library has a function of that name with C linkage. What
// the project does not use is absent on purpose: __shared__ (SHARED makes redzones), float atomics (their order is
// not fixed), __activemask (masks are always written out).
#pragma once

#include "gpu/simt/executor.h"

#include <algorithm>
#include <bit>
#include <math.h>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

#define threadIdx (::std::as_const(::rg::simt::thread_index))
#define blockIdx (::std::as_const(::rg::simt::block_index))
#define blockDim (::std::as_const(::rg::simt::block_extent))
#define gridDim (::std::as_const(::rg::simt::grid_extent))
inline constexpr int warpSize = rg::simt::kWarp;

using uint3 = rg::simt::Index3;
struct dim3 : uint3 {
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : uint3{x, y, z} {}
};
using cudaStream_t = struct CUstream_st*;

// ---- vector types: alignment is what makes one instruction of a load ----
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(4) uchar4 {
    unsigned char x, y, z, w;
};
struct alignas(16) double2 {
    double x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline uchar4 make_uchar4(unsigned char x, unsigned char y, unsigned char z, unsigned char w) { return {x, y, z, w}; }
inline double2 make_double2(double x, double y) { return {x, y}; }

// ---- arithmetic ----
inline int min(int a, int b) { return std::min(a, b); }
inline int max(int a, int b) { return std::max(a, b); }
inline unsigned min(unsigned a, unsigned b) { return std::min(a, b); }
inline unsigned max(unsigned a, unsigned b) { return std::max(a, b); }
inline long min(long a, long b) { return std::min(a, b); }
inline long max(long a, long b) { return std::max(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdividef(float a, float b) { return a / b; }
/// To the nearest, ties to even; saturates, and NaN becomes 0.
inline int __float2int_rn(float x) {
    if (!(x >= -2147483648.0f)) return x < 0 ? -2147483647 - 1 : 0;
    return x >= 2147483648.0f ? 2147483647 : int(rintf(x));
}
inline float __int2float_rn(int x) { return float(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(unsigned x) { return std::countl_zero(x); }
inline int __ffs(unsigned x) { return x ? std::countr_zero(x) + 1 : 0; }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t{a} * b >> 32); }

// The GPU's versions are less exact (2 units in the last place, more far from 1): compare with a tolerance.
#define rsqrtf(x) (1.0f / sqrtf(x))
#define __expf(x) expf(x)
#define __logf(x) logf(x)

// ---- memory ----
template <class T>
T __ldg(const T* from) {
    return *from;
}
template <class T>
T __ldcs(const T* from) {
    return *from;
}
template <class T>
void __stcs(T* to, T value) {
    *to = value;
}
/// Returns what was there before. Integers only: a sum of floats would depend on the order of arrival.
inline int atomicAdd(int* to, int value) { return __atomic_fetch_add(to, value, __ATOMIC_RELAXED); }
inline unsigned atomicAdd(unsigned* to, unsigned value) { return __atomic_fetch_add(to, value, __ATOMIC_RELAXED); }
inline unsigned atomicMin(unsigned* to, unsigned value) {
    unsigned before = __atomic_load_n(to, __ATOMIC_RELAXED);
    while (value < before &&
           !__atomic_compare_exchange_n(to, &before, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return before;
}
inline void __threadfence() {}

// ---- threads of a block, lanes of a warp ----
inline void __syncthreads(rg::simt::Site site = rg::simt::Site::here(__builtin_FILE(), __builtin_LINE())) {
    rg::simt::block_barrier(site);
}
