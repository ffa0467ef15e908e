// Replaces the AVX-512 and AMX instructions of tiles_isa.cpp by functions, so that tests run its kernels on any CPU
// with AVX2. The compiler includes this file before tiles_isa.cpp. RG_EMULATE_AMX chooses AMX instead of AVX512-BF16.
//
// The products of bf16 round as Intel's manual defines them (Software Developer's Manual, volume 2, VDPBF16PS and
// TDPBF16PS): each product is fused with an addition that rounds to nearest, ties to even. Denormal operands count as
// zero, and denormal results become zero. On an Intel Xeon that has these instructions, 100 random sums had the same
// bits as here.
#pragma once

#include <cstdint>
#include <cstring>
#include <immintrin.h>

// simd.h chooses 16 lanes and the AVX-512 code by these names.
#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512VL__ 1
#define __AVX512BF16__ 1

namespace emulated {

// The names have no linkage, since the kernels of each emulated instruction set include this file.
namespace {

typedef float Floats __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint64_t Longs __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

// Moves of data

template <class T, class Vector>
inline Vector load_lanes(__mmask16 lanes, const void* from) {
    T values[16] = {};
    for (int i = 0; i < 16; ++i)
        if (lanes >> i & 1) std::memcpy(values + i, static_cast<const T*>(from) + i, sizeof(T));
    Vector v;
    std::memcpy(&v, values, sizeof v);
    return v;
}
template <class T, class Vector>
inline void store_lanes(void* to, __mmask16 lanes, Vector v) {
    T values[16];
    std::memcpy(values, &v, sizeof v);
    for (int i = 0; i < 16; ++i)
        if (lanes >> i & 1) std::memcpy(static_cast<T*>(to) + i, values + i, sizeof(T));
}
inline __m512i load(const void* from) {
    __m512i v;
    std::memcpy(&v, from, sizeof v);
    return v;
}
inline void store(void* to, __m512i v) { std::memcpy(to, &v, sizeof v); }
inline __m512i widen(__m256i v) {
    Words out;
    for (int i = 0; i < 16; ++i) out[i] = ((Halves)v)[i];
    return (__m512i)out;
}
/// Interleaves the lower (half = 0) or upper (half = 1) lanes of each quarter (128 bits) of a and b.
template <class Vector>
inline __m512i unpack(__m512i a, __m512i b, int half) {
    constexpr int kLanes = 16 / int(sizeof(Vector{}[0])); // number of lanes in a quarter
    const Vector x = (Vector)a, y = (Vector)b;
    Vector out;
    for (int i = 0; i < 4 * kLanes; i += 2) {
        const int from = i / kLanes * kLanes + half * kLanes / 2 + i % kLanes / 2;
        out[i] = x[from], out[i + 1] = y[from];
    }
    return (__m512i)out;
}
/// Returns two quarters (128 bits) of a, then two of b. Each two bits of `choice`, from the lowest on, are the index of
/// one of these quarters.
inline __m512i quarters(__m512i a, __m512i b, int choice) {
    const Words x = (Words)a, y = (Words)b;
    Words out;
    for (int i = 0; i < 16; ++i) out[i] = (i < 8 ? x : y)[(choice >> i / 4 * 2 & 3) * 4 + i % 4];
    return (__m512i)out;
}

// Arithmetic

/// Returns v with denormal lanes replaced by zeros of the same sign.
inline Floats flush(Floats v) {
    const Words bits = (Words)v;
    return (Floats)((bits & 0x7F800000) == 0 ? bits & 0x80000000 : bits);
}
inline Floats multiply_add(Floats a, Floats b, Floats sum) {
    const Floats operands[3] = {flush(a), flush(b), flush(sum)};
    __m256 halves[3][2];
    std::memcpy(halves, operands, sizeof halves);
    for (int i = 0; i < 2; ++i) halves[2][i] = _mm256_fmadd_ps(halves[0][i], halves[1][i], halves[2][i]);
    Floats out;
    std::memcpy(&out, halves[2], sizeof out);
    return flush(out);
}
/// Return the first or the second bf16 of each pair as f32.
inline Floats firsts(Words pairs) { return (Floats)(pairs << 16); }
inline Floats seconds(Words pairs) { return (Floats)(pairs & 0xFFFF0000); }

inline __m512 dot(__m512 sum, __m512bh a, __m512bh b) {
    const Words x = (Words)a, y = (Words)b;
    return multiply_add(firsts(x), firsts(y), multiply_add(seconds(x), seconds(y), sum));
}
inline __m256bh narrow(__m512 v) {
    const Floats flushed = flush(v);
    const Words bits = (Words)flushed, rounded = bits + (0x7FFF + (bits >> 16 & 1)), quiet = bits | 0x400000;
    const Words out = flushed == flushed ? rounded : quiet;
    Halves halves;
    for (int i = 0; i < 16; ++i) halves[i] = uint16_t(out[i] >> 16);
    return (__m256bh)halves;
}

// Tiles of AMX

thread_local Words tiles[8][16];

inline void load_tile(int tile, const void* from, int64_t line) {
    for (int i = 0; i < 16; ++i) std::memcpy(&tiles[tile][i], static_cast<const char*>(from) + i * line, 64);
}
inline void store_tile(int tile, void* to, int64_t line) {
    for (int i = 0; i < 16; ++i) std::memcpy(static_cast<char*>(to) + i * line, &tiles[tile][i], 64);
}
inline void clear_tile(int tile) { std::memset(tiles[tile], 0, sizeof tiles[tile]); }
inline void multiply_tiles(int sum, int a, int b) {
    for (int row = 0; row < 16; ++row) {
        Floats first{}, second{};
        for (int i = 0; i < 16; ++i) {
            const Words pair = tiles[a][row][i] - Words{};
            first = multiply_add(firsts(pair), firsts(tiles[b][i]), first);
            second = multiply_add(seconds(pair), seconds(tiles[b][i]), second);
        }
        tiles[sum][row] = (Words)flush(flush((Floats)tiles[sum][row]) + flush(first + second));
    }
}

} // namespace

} // namespace emulated

#define _mm512_loadu_si512 emulated::load
#define _mm512_storeu_si512 emulated::store
#define _mm512_stream_ps(p, v) emulated::store(p, (__m512i)(v))
#define _mm512_maskz_loadu_ps emulated::load_lanes<float, __m512>
#define _mm512_mask_storeu_ps emulated::store_lanes<float, __m512>
#define _mm256_maskz_loadu_epi16 emulated::load_lanes<uint16_t, __m256i>
#define _mm256_mask_storeu_epi16 emulated::store_lanes<uint16_t, __m256i>
#define _mm512_castsi512_ps(v) ((__m512)(v))
#define _mm512_max_ps(a, b) ((a) > (b) ? (a) : (b))
#define _mm512_min_ps(a, b) ((a) < (b) ? (a) : (b))
#define _mm512_set1_epi32(x) ((__m512i)(uint32_t(x) - emulated::Words{}))
#define _mm512_or_si512(a, b) ((a) | (b))
#define _mm512_cvtepu16_epi32 emulated::widen
#undef _mm512_slli_epi32
#define _mm512_slli_epi32(v, n) ((__m512i)((emulated::Words)(v) << (n)))
#define _mm512_unpacklo_epi32(a, b) emulated::unpack<emulated::Words>(a, b, 0)
#define _mm512_unpackhi_epi32(a, b) emulated::unpack<emulated::Words>(a, b, 1)
#define _mm512_unpacklo_epi64(a, b) emulated::unpack<emulated::Longs>(a, b, 0)
#define _mm512_unpackhi_epi64(a, b) emulated::unpack<emulated::Longs>(a, b, 1)
#undef _mm512_shuffle_i32x4
#define _mm512_shuffle_i32x4 emulated::quarters
#define _mm512_cvtneps_pbh emulated::narrow
#define _mm512_dpbf16_ps emulated::dot

#if defined(RG_EMULATE_AMX)
#define __AMX_BF16__ 1
#undef _tile_loadconfig
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) (void)(config)
#define _tile_loadd emulated::load_tile
#define _tile_stored emulated::store_tile
#define _tile_zero emulated::clear_tile
#define _tile_dpbf16ps emulated::multiply_tiles
#endif
