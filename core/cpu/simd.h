// Defines the vector type of the kernels that are compiled once per instruction set.
//
// Each *_isa.cpp file except tiles_isa.cpp is compiled once for each RG_ISA of portable, avx2 and avx512, with the
// compiler flags of that instruction set. elements_isa.cpp and norm_isa.cpp, which convert bf16, are also compiled for
// avx512bf16. tiles_isa.cpp is compiled for avx512bf16 and amx only, and for the tests with emulated instructions.
// RG_ISA is also the namespace of the definitions. The flags determine the vector width. On CPUs other than x86-64,
// only portable is compiled.
//
// These files must not call inline functions that other namespaces define. The linker keeps one copy of such a
// function, possibly one with instructions that an older CPU lacks.
#pragma once

#include <stdint.h>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h> // compiles in a tenth of the time of immintrin.h
#endif

#ifndef RG_ISA
#error "compile with -DRG_ISA=portable, avx2, avx512, avx512bf16 or amx"
#endif

#define RG_UNROLL _Pragma("GCC unroll 16")

namespace rg::cpu::RG_ISA {

#if defined(__AVX512F__)
constexpr int kWidth = 16, kRegisters = 32;
#elif defined(__AVX2__)
constexpr int kWidth = 8, kRegisters = 16;
#elif defined(__aarch64__)
constexpr int kWidth = 4, kRegisters = 32;
#else
constexpr int kWidth = 4, kRegisters = 16;
#endif

/// True if a multiply-add can take one lane of a vector as its scalar factor, without an instruction that copies the
/// lane to all others.
#if defined(__aarch64__)
constexpr bool kLaneFactors = true;
#else
constexpr bool kLaneFactors = false;
#endif

typedef float Vec __attribute__((vector_size(kWidth * 4)));
typedef float VecU __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));

static inline Vec load(const float* p) { return *reinterpret_cast<const VecU*>(p); }
static inline void store(float* p, Vec v) { *reinterpret_cast<VecU*>(p) = v; }
static inline Vec splat(float x) { return x - Vec{}; }
/// Returns the sum of all lanes. Adds pairs: in a sum lane by lane, each addition would wait for the one before.
static inline float sum_of(Vec v) {
    float lanes[kWidth];
    store(lanes, v);
    RG_UNROLL
    for (int half = kWidth / 2; half > 0; half /= 2) {
        RG_UNROLL
        for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
}

/// Returns the number of lanes in use in the vector that begins at value i of n.
static inline int lanes_at(int64_t i, int64_t n) { return int(n - i < kWidth ? n - i : kWidth); }

/// Calls f(index of the first value, number of lanes) for every vector of `count` values. For all but an incomplete
/// last vector, the number is the constant kWidth.
template <class F>
static inline __attribute__((always_inline)) void each_vector(int64_t count, F f) {
    int64_t i = 0;
    for (; i + kWidth <= count; i += kWidth) f(i, kWidth);
    if (i < count) f(i, int(count - i));
}

/// Load or store only the first n lanes (0 <= n <= kWidth). A load sets the remaining lanes to zero. Memory beyond the
/// first n values is not accessed. With AVX2, whole vectors need no mask: a masked store is slow on AMD processors.
#if defined(__AVX512F__)
static inline __mmask16 first_lanes(int n) { return __mmask16((1u << n) - 1); }
static inline Vec load_first(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
static inline void store_first(float* p, Vec v, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }
#elif defined(__AVX2__)
static inline __m256i first_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline Vec load_first(const float* p, int n) {
    return n == kWidth ? load(p) : _mm256_maskload_ps(p, first_lanes(n));
}
static inline void store_first(float* p, Vec v, int n) {
    n == kWidth ? store(p, v) : _mm256_maskstore_ps(p, first_lanes(n), v);
}
#else
static inline Vec load_first(const float* p, int n) {
    if (n == kWidth) return load(p);
    Vec v{};
    for (int i = 0; i < n; ++i) v[i] = p[i];
    return v;
}
static inline void store_first(float* p, Vec v, int n) {
    if (n == kWidth) return store(p, v);
    for (int i = 0; i < n; ++i) p[i] = v[i];
}
#endif

/// Returns v[index[i]] in lane i.
static inline Vec permute(Vec v, const int32_t* index) {
#if defined(__AVX512F__)
    return _mm512_permutexvar_ps(_mm512_loadu_si512(index), v);
#elif defined(__AVX2__)
    return _mm256_permutevar8x32_ps(v, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(index)));
#else
    Vec out{};
    for (int i = 0; i < kWidth; ++i) out[i] = v[index[i]];
    return out;
#endif
}

/// Load or store the first n lanes as bf16 bits in memory and f32 in registers. Stores round to nearest, ties to even.
/// A NaN stays NaN. With AVX512-BF16, stores replace subnormal values by zero.
#if defined(__AVX512F__)
static inline Vec load_first(const uint16_t* p, int n) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(n), p)), 16));
}
static inline __m256i narrow(Vec v) {
#if defined(__AVX512BF16__)
    return (__m256i)_mm512_cvtneps_pbh(v);
#else
    const __m512i bits = _mm512_castps_si512(v),
                  odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
#endif
}
static inline void store_first(uint16_t* p, Vec v, int n) { _mm256_mask_storeu_epi16(p, first_lanes(n), narrow(v)); }
#else
typedef uint32_t Bits __attribute__((vector_size(kWidth * 4)));
static inline Vec load_first(const uint16_t* p, int n) {
    Bits bits{};
    for (int i = 0; i < n; ++i) bits[i] = uint32_t{p[i]} << 16;
    return (Vec)bits;
}
static inline void store_first(uint16_t* p, Vec v, int n) {
    const Bits bits = (Bits)v, rounded = bits + (0x7FFF + (bits >> 16 & 1)), quiet = bits | 0x400000;
    const Bits out = v == v ? rounded : quiet;
    for (int i = 0; i < n; ++i) p[i] = uint16_t(out[i] >> 16);
}
#endif

/// Load or store the first n lanes as bytes in memory and f32 in registers. The values are whole numbers from 0 to 255.
#if defined(__AVX512BW__) && defined(__AVX512VL__)
static inline Vec load_bytes(const uint8_t* p, int n) {
    return _mm512_maskz_cvtepi32_ps(
        first_lanes(n), _mm512_maskz_cvtepu8_epi32(first_lanes(n), _mm_maskz_loadu_epi8(first_lanes(n), p)));
}
static inline void store_bytes(uint8_t* p, Vec v, int n) {
    _mm512_mask_cvtepi32_storeu_epi8(p, first_lanes(n), _mm512_maskz_cvttps_epi32(first_lanes(n), v));
}
#else
static inline Vec load_bytes(const uint8_t* p, int n) {
    Vec v{};
    for (int i = 0; i < n; ++i) v[i] = p[i];
    return v;
}
static inline void store_bytes(uint8_t* p, Vec v, int n) {
    for (int i = 0; i < n; ++i) p[i] = uint8_t(v[i]);
}
#endif

/// Returns true if p is aligned to the size of kWidth values of its type.
template <class T>
static inline bool aligned(const T* p) {
    return reinterpret_cast<uintptr_t>(p) % (kWidth * sizeof(T)) == 0;
}

/// Stores v past the caches, for results that are too large to stay there. p must be aligned(). Stores normally on Arm,
/// and bf16 also on x86 without AVX-512.
static inline void stream_store(float* p, Vec v) {
#if defined(__AVX512F__)
    _mm512_stream_ps(p, v);
#elif defined(__AVX2__)
    _mm256_stream_ps(p, v);
#elif defined(__SSE2__)
    _mm_stream_ps(p, v);
#else
    store(p, v);
#endif
}

static inline void stream_store(uint16_t* p, Vec v) {
#if defined(__AVX512F__)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), narrow(v));
#else
    store_first(p, v, kWidth);
#endif
}

static inline Vec square_root(Vec v) {
#if defined(__AVX512F__)
    return _mm512_sqrt_ps(v);
#elif defined(__AVX2__)
    return _mm256_sqrt_ps(v);
#else
    for (int i = 0; i < kWidth; ++i) v[i] = __builtin_sqrtf(v[i]);
    return v;
#endif
}

/// Returns 1 / v with an error of at most 1 unit in the last place, for 2^-100 < v < 2^100. With AVX-512, this takes
/// less time than a division.
static inline Vec reciprocal(Vec v) {
#if defined(__AVX512F__)
    const Vec estimate = _mm512_rcp14_ps(v), one = splat(1);
    return estimate + estimate * (one - v * estimate); // a Newton step turns 14 valid bits into 24
#else
    return splat(1) / v;
#endif
}

/// Return the larger or the smaller of the two, or b if one of them is a NaN.
static inline Vec larger(Vec a, Vec b) {
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#else
    return a > b ? a : b;
#endif
}
static inline Vec smaller(Vec a, Vec b) {
#if defined(__AVX512F__)
    return _mm512_min_ps(a, b);
#else
    return a < b ? a : b;
#endif
}

/// Returns v, but at least `least` and at most `most`. A NaN stays NaN.
static inline Vec clamp(Vec v, Vec least, Vec most) { return smaller(most, larger(least, v)); }

} // namespace rg::cpu::RG_ISA
