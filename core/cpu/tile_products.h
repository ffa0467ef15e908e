// Products of tiles: pixels times filters for the forward pass, and gradients times pixels for the weight gradient.
// tiles_isa.cpp has the loops around them.
//
// There are two implementations. With AMX, a tile is a register of 16 rows of 64 bytes. Each instruction multiplies
// 16 x 32 by 32 x 16 bf16 values and adds the result to 16 x 16 f32 accumulators.
//
// With AVX512-BF16 alone, each instruction (vdpbf16ps) adds, for 16 results, the products of two pairs of bf16. One
// operand has 16 different pairs: of filter taps in the forward pass, of pixels in the weight gradient. The other
// operand is a single pair, which is broadcast from memory. A block of usually 16 or more accumulators stays in
// registers, so that an instruction needs few loads: for example, 10 loads per 16 instructions.
#pragma once

#include "core/cpu/simd.h"

#include "core/cpu/kernels.h"

namespace rg::cpu::RG_ISA {

namespace {

/// One tap of 16 channels of x. It stands for 16 columns of the weight gradient, a matrix whose rows are filters.
struct WgradColumn {
    const uint16_t* x; // first run of pixels of these channels
    float* sums;       // [16 filters][16 channels]; from one filter to the next, r * s * padded_c floats (TileGradient)
};

#if defined(__AMX_BF16__)

constexpr int kPixels = kTileSide; // number of pixels in a tile
constexpr bool kSplitsF32 = true;

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {kTileSide, kTileSide, kTileSide, kTileSide, kTileSide, kTileSide, kTileSide, kTileSide};
};
// The configuration must be a constant, so that all its bytes are in memory. Some versions of g++ (12.2) assume that
// _tile_loadconfig reads only the first 8 bytes, so they may omit the stores of a variable's other bytes.
constexpr TileConfig kConfig;

// Loads it in each call, since other libraries on this thread load and release configurations, as the ABI allows.
void configure() { _tile_loadconfig(&kConfig); }

// In the forward pass, tiles 4 and 5 hold pixels, and tiles 6 and 7 hold filters. Tile 2 p + k holds the results of
// pixel tile 4 + p and filter tile 6 + k, for p, k = 0, 1.

/// Adds windows * filters to tiles 0 to 3, for NP tiles of pixels and NK tiles of filters. a points to the first window
/// of the first tile of pixels, and b to that of the second. b is not used if NP is 1.
template <int NP, int NK>
void add_products(const TileConv& g, const uint16_t* a, const uint16_t* b, const uint16_t* w) {
    const int64_t step = g.step * 2;
    for (int64_t r = 0; r < g.r; ++r, a += g.row, b += g.row)
        for (int64_t i = 0; i < g.runs; ++i, w += NK * kTileValues) {
            _tile_loadd(4, a + i * kTileRun, step);
            _tile_loadd(6, w, 64);
            _tile_dpbf16ps(0, 4, 6);
            if (NP > 1) {
                _tile_loadd(5, b + i * kTileRun, step);
                _tile_dpbf16ps(2, 5, 6);
            }
            if (NK > 1) {
                _tile_loadd(7, w + kTileValues, 64);
                _tile_dpbf16ps(1, 4, 7);
                if (NP > 1) _tile_dpbf16ps(3, 5, 7);
            }
        }
}

/// Computes results [NP * 16][2 * 16] = windows * filters; only NK * 16 columns are written. With kSplit, sums the
/// products low * high, high * low and high * high.
template <int NP, int NK, bool kSplit>
void products(const TileConv& g, const uint16_t* a, const uint16_t* b, const uint16_t* w, float* results) {
    _tile_zero(0);
    if (NK > 1) _tile_zero(1);
    if (NP > 1) _tile_zero(2);
    if (NP > 1 && NK > 1) _tile_zero(3);
    if (kSplit) {
        add_products<NP, NK>(g, a + g.low, b + g.low, w);
        add_products<NP, NK>(g, a, b, w + g.low_w);
    }
    add_products<NP, NK>(g, a, b, w);
    constexpr int64_t kLine = 2 * kTileSide * 4;
    _tile_stored(0, results, kLine);
    if (NK > 1) _tile_stored(1, results + kTileSide, kLine);
    if (NP > 1) _tile_stored(2, results + kTileSide * 2 * kTileSide, kLine);
    if (NP > 1 && NK > 1) _tile_stored(3, results + kTileSide * 2 * kTileSide + kTileSide, kLine);
}

// In the weight gradient, tiles 0 to 5 hold results, one for each WgradColumn. Tile 6 holds dy of 16 filters, and tile
// 7 holds x of one WgradColumn.

#define RG_EACH_COLUMN(X) X(0) X(1) X(2) X(3) X(4) X(5)

/// Adds the sum over the pixels of dy[filter][pixel] * x[pixel][channel] to tiles 0 to N - 1, for 16 filters and the 16
/// channels of each of N WgradColumns. Reads the plane of x that begins `plane` values after WgradColumn::x.
template <int N>
void add_gradient(const TileGradient& g, const uint16_t* dy, const WgradColumn* columns, int64_t plane) {
    const int64_t dy_step = g.filter_step * 2;
    for (int64_t image = 0; image < g.images; ++image)
        for (int64_t run = 0; run < g.runs; ++run, dy += kTileRun) {
            const int64_t offset = plane + image * g.image + run * kTileValues;
            _tile_loadd(6, dy, dy_step);
#define RG_MULTIPLY(n)                                                                                                 \
    if constexpr (n < N) {                                                                                             \
        _tile_loadd(7, columns[n].x + offset, 64);                                                                     \
        _tile_dpbf16ps(n, 6, 7);                                                                                       \
    }
            RG_EACH_COLUMN(RG_MULTIPLY)
        }
}

/// Computes the sums of 16 filters for N WgradColumns. Adds to the old sums, or overwrites them, as g.add says.
template <int N>
void gradient_block(const TileGradient& g, const uint16_t* dy, const WgradColumn* columns) {
    const int64_t sums_step = g.r * g.s * g.padded_c * 4;
#define RG_LOAD(n)                                                                                                     \
    if constexpr (n < N) {                                                                                             \
        if (g.add)                                                                                                     \
            _tile_loadd(n, columns[n].sums, sums_step);                                                                \
        else                                                                                                           \
            _tile_zero(n);                                                                                             \
    }
    RG_EACH_COLUMN(RG_LOAD)
    if (g.low_x) {
        add_gradient<N>(g, dy + g.low_dy, columns, 0);
        add_gradient<N>(g, dy, columns, g.low_x);
    }
    add_gradient<N>(g, dy, columns, 0);
#define RG_STORE(n)                                                                                                    \
    if constexpr (n < N) _tile_stored(n, columns[n].sums, sums_step);
    RG_EACH_COLUMN(RG_STORE)
#undef RG_EACH_COLUMN
#undef RG_LOAD
#undef RG_MULTIPLY
#undef RG_STORE
}

#else

constexpr int kPixels = 8; // number of pixels in a tile
constexpr bool kSplitsF32 = false;

void configure() {}

/// Returns a vector of 16 copies of the pair of bf16 at p.
inline __m512i broadcast_pair(const uint16_t* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
}
/// Returns, in each lane, `sum` plus the two products of the pair in a with the pair in b.
inline Vec dot(Vec sum, __m512i a, __m512i b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

/// Computes results [MR][NK * 16] = windows * filters, for MR pixels and NK tiles of filters. a points to the window of
/// the first pixel, and b to that of pixel kPixels, if MR exceeds kPixels. Lines of `results` are 2 * 16 values apart.
template <int MR, int NK>
void dot_block(const TileConv& g, const uint16_t* a, const uint16_t* b, const uint16_t* w, float* results) {
    constexpr int kBases = MR < kPixels ? MR : kPixels;
    const int64_t far = b - a;
    Vec acc[MR][NK] = {};
    for (int64_t r = 0; r < g.r; ++r, a += g.row) {
        const uint16_t* pixel[kBases];
        RG_UNROLL
        for (int i = 0; i < kBases; ++i) pixel[i] = a + i * g.step;
        for (int64_t first = 0; first < g.runs * kTileSide; first += kTileSide, w += NK * kTileValues) {
            const int64_t end = g.pairs - first < kTileSide ? g.pairs : first + kTileSide;
            const uint16_t* filter = w;
#pragma GCC unroll 1
            for (int64_t j = 2 * first; j < 2 * end; j += 2, filter += kTileRun) {
                __m512i filters[NK];
                RG_UNROLL
                for (int n = 0; n < NK; ++n) filters[n] = _mm512_loadu_si512(filter + n * kTileValues);
                RG_UNROLL
                for (int i = 0; i < MR; ++i) {
                    const __m512i x = broadcast_pair(pixel[i % kPixels] + (i < kPixels ? j : far + j));
                    RG_UNROLL
                    for (int n = 0; n < NK; ++n) acc[i][n] = dot(acc[i][n], filters[n], x);
                }
            }
        }
    }
    RG_UNROLL
    for (int i = 0; i < MR; ++i) {
        RG_UNROLL
        for (int n = 0; n < NK; ++n) store(results + i * 2 * kTileSide + n * kTileSide, acc[i][n]);
    }
}

/// Computes results [NP * kPixels][2 * 16] = windows * filters, for NP tiles of pixels and NK tiles of filters; only
/// NK * 16 columns are written. a points to the first window of the first tile of pixels, and b to that of the second.
template <int NP, int NK, bool kSplit>
void products(const TileConv& g, const uint16_t* a, const uint16_t* b, const uint16_t* w, float* results) {
    static_assert(!kSplit, "three products take longer than multiply-adds of f32");
    if constexpr (NK == 1) return dot_block<NP * kPixels, 1>(g, a, b, w, results);
    dot_block<kPixels, NK>(g, a, a, w, results);
    if (NP > 1) dot_block<kPixels, NK>(g, b, b, w, results + kPixels * 2 * kTileSide);
}

/// Computes the sum over the pixels of dy[filter][pixel] * x[pixel][channel], for MR filters, starting with filter
/// `first`, and the 16 channels of each of N WgradColumns. Adds it to WgradColumn::sums, or overwrites them, as g.add
/// says.
template <int MR, int N>
void dot_gradient(const TileGradient& g, const uint16_t* dy, const WgradColumn* columns, int first) {
    const int64_t sums_step = g.r * g.s * g.padded_c;
    Vec acc[MR][N] = {};
    for (int i = 0; i < MR && g.add; ++i) {
        RG_UNROLL
        for (int n = 0; n < N; ++n) acc[i][n] = load(columns[n].sums + (first + i) * sums_step);
    }
    const uint16_t *filter[MR], *x[N];
    RG_UNROLL
    for (int i = 0; i < MR; ++i) filter[i] = dy + (first + i) * g.filter_step;
    for (int64_t image = 0, j = 0; image < g.images; ++image) {
        RG_UNROLL
        for (int n = 0; n < N; ++n) x[n] = columns[n].x + image * g.image;
        const int64_t end = j + g.runs * kTileRun;
#pragma GCC unroll 1
        for (int64_t from = 0; j < end; j += 2, from += kTileRun) {
            __m512i pixels[N];
            RG_UNROLL
            for (int n = 0; n < N; ++n) pixels[n] = _mm512_loadu_si512(x[n] + from);
            RG_UNROLL
            for (int i = 0; i < MR; ++i) {
                const __m512i gradient = broadcast_pair(filter[i] + j);
                RG_UNROLL
                for (int n = 0; n < N; ++n) acc[i][n] = dot(acc[i][n], pixels[n], gradient);
            }
        }
    }
    RG_UNROLL
    for (int i = 0; i < MR; ++i) {
        RG_UNROLL
        for (int n = 0; n < N; ++n) store(columns[n].sums + (first + i) * sums_step, acc[i][n]);
    }
}

/// Computes the sums of 16 filters for N WgradColumns. Adds to the old sums, or overwrites them, as g.add says.
template <int N>
void gradient_block(const TileGradient& g, const uint16_t* dy, const WgradColumn* columns) {
    constexpr int kFilters = N == 1 ? 16 : N <= 3 ? 8 : 4; // gives 16 to 24 accumulators
    for (int first = 0; first < kTileSide; first += kFilters) dot_gradient<kFilters, N>(g, dy, columns, first);
}

#endif

} // namespace

} // namespace rg::cpu::RG_ISA
