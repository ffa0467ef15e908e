// Convolution by AMX tile products. Each product multiplies 16 x 32 by 32 x 16 bf16 values and adds the result to
// 16 x 16 f32 accumulators. This file is compiled only for the instruction set `amx`.
//
// f32 values use the same tiles: each value is split into the sum of two bf16, and three products replace one. Each
// factor then has 16 significant bits, and the relative RMS error of the result is below 5e-6. The three tile products
// take a fifth of the time of the multiply-adds that they replace.
//
// In the forward pass, the rows of a tile are pixels and its columns are taps. The windows of neighbouring pixels begin
// `step` values apart in the padded image. So a tile is loaded directly from the image, for any number of channels. The
// taps of a filter row are contiguous. The last run of 32 taps may read values after the row's taps, and
// multiplies them by zeros in the filters.
//
// The weight gradient sums over result pixels. dy is transposed to [filter][pixel]. x is stored by pairs of pixels,
// [pixel / 2][channel][2], in one copy for each column of taps. A copy contains only the pixels that the
// column's taps multiply, in the order of the result pixels; taps of other filter rows begin whole rows later. So no
// product is wasted on padding columns, and every load reads whole cache lines. A load across cache lines takes twice
// as long, and loads limit the speed here.
#include "ringgrad/core/cpu/simd.h"

#include "ringgrad/core/cpu/isa.h"

namespace rg::cpu::RG_ISA {

namespace {

constexpr int kSide = 16;      // number of rows in a tile, and of f32 values or bf16 pairs in a row
constexpr int64_t kTile = 512; // bf16 in a tile
constexpr int64_t kRun = 32;   // bf16 in a row of a tile

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {kSide, kSide, kSide, kSide, kSide, kSide, kSide, kSide};
};
// The configuration must be a constant, so that all its bytes are in memory. g++ assumes that _tile_loadconfig reads
// only the first 8 bytes, so it may omit the stores of a variable's other bytes.
constexpr TileConfig kConfig;

void configure() {
    static thread_local bool done = false;
    if (done) return;
    _tile_loadconfig(&kConfig);
    done = true;
}

// In the forward pass, tiles 4 and 5 hold pixels, and tiles 6 and 7 hold filters. Tile 2 p + k holds the results of
// pixel tile 4 + p and filter tile 6 + k, for p, k = 0, 1.

/// Adds windows * filters to tiles 0 to 3, for NP tiles of pixels (windows at a and b) and NK tiles of filters.
template <int NP, int NK>
void add_products(const TileConv& g, const uint16_t* a, const uint16_t* b, const uint16_t* w) {
    const int64_t step = g.step * 2;
    for (int64_t r = 0; r < g.r; ++r, a += g.row, b += g.row)
        for (int64_t i = 0; i < g.runs; ++i, w += NK * kTile) {
            _tile_loadd(4, a + i * kRun, step);
            _tile_loadd(6, w, 64);
            _tile_dpbf16ps(0, 4, 6);
            if (NP > 1) {
                _tile_loadd(5, b + i * kRun, step);
                _tile_dpbf16ps(2, 5, 6);
            }
            if (NK > 1) {
                _tile_loadd(7, w + kTile, 64);
                _tile_dpbf16ps(1, 4, 7);
                if (NP > 1) _tile_dpbf16ps(3, 5, 7);
            }
        }
}

/// Computes results [NP * 16][2 * 16] = windows * filters. With kSplit, sums the products of high and low parts, except
/// low times low.
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
    constexpr int64_t kLine = 2 * kSide * 4;
    _tile_stored(0, results, kLine);
    if (NK > 1) _tile_stored(1, results + kSide, kLine);
    if (NP > 1) _tile_stored(2, results + kSide * 2 * kSide, kLine);
    if (NP > 1 && NK > 1) _tile_stored(3, results + kSide * 2 * kSide + kSide, kLine);
}

/// Sums, over the pixels of an image, the deviations of one vector of channels from the first pixel, and their squares.
struct Sums {
    Vec shift, sum, squares;
    bool started = false;
    void add(Vec v) {
        if (!started) shift = v, sum = squares = Vec{}, started = true;
        const Vec d = v - shift;
        sum += d;
        squares += d * d;
    }
};

/// Writes results + bias, then ReLU if set, to y [.. k]. With kStats it also adds the values before ReLU to the sums.
template <int NK, bool kStats, class T>
void finish(const TileConv& g, const TileResult<T>& to, int64_t k, const int32_t* pixels, int rows,
            const float* results, Sums (&all_sums)[2]) {
    Sums sums[2] = {all_sums[0], all_sums[1]}; // in registers, since the compiler must assume that y aliases all_sums
    const Vec bias[2] = {load(to.bias + k), load(to.bias + k + (NK > 1 ? kSide : 0))};
    const int last = int(g.k - k - (NK - 1) * kSide < kSide ? g.k - k - (NK - 1) * kSide : kSide);
    for (int i = 0; i < rows; ++i, results += 2 * kSide) {
        if (pixels[i] < 0) continue;
        T* const y = to.y + pixels[i] * g.k + k;
        RG_UNROLL
        for (int n = 0; n < NK; ++n) {
            Vec v = load(results + n * kSide) + bias[n];
            if (kStats) sums[n].add(v);
            if (to.relu) v = relu(v);
            store_first(y + n * kSide, v, n == NK - 1 ? last : kSide);
        }
    }
    all_sums[0] = sums[0], all_sums[1] = sums[1];
}

template <int NK, bool kStats, class T>
void forward_block(const TileConv& g, const uint16_t* padded, const uint16_t* w, int64_t k, const TileResult<T>& to) {
    constexpr bool kSplit = sizeof(T) == 4;
    alignas(64) float results[2 * kSide * 2 * kSide];
    Sums sums[2];
    for (int64_t t = 0; t < g.tiles; t += 2) {
        const bool two = t + 1 < g.tiles;
        const uint16_t *a = padded + g.from[t], *b = padded + g.from[two ? t + 1 : t];
        (two ? products<2, NK, kSplit> : products<1, NK, kSplit>)(g, a, b, w, results);
        finish<NK, kStats>(g, to, k, g.to + t * kSide, two ? 2 * kSide : kSide, results, sums);
    }
    for (int n = 0; kStats && n < NK; ++n) {
        store(to.shift + k + n * kSide, sums[n].shift);
        store(to.sum + k + n * kSide, sums[n].sum);
        store(to.squares + k + n * kSide, sums[n].squares);
    }
}

template <class T>
void forward(const TileConv& g, const uint16_t* padded, const uint16_t* packed, const TileResult<T>& to) {
    configure();
    const int64_t tiles_of_k = (g.k + kSide - 1) / kSide;
    for (int64_t n = 0; n < tiles_of_k; n += 2) {
        const uint16_t* w = packed + n * g.r * g.runs * kTile;
        const bool two = n + 1 < tiles_of_k;
        if (to.sum)
            (two ? forward_block<2, true, T> : forward_block<1, true, T>)(g, padded, w, n * kSide, to);
        else
            (two ? forward_block<2, false, T> : forward_block<1, false, T>)(g, padded, w, n * kSide, to);
    }
}

void split(const float* x, int64_t count, uint16_t* high, uint16_t* low) {
    for (int64_t i = 0; i < count; i += kWidth) {
        const int n = int(count - i < kWidth ? count - i : kWidth);
        const Vec v = load_first(x + i, n);
        const __m256i rounded = narrow(v);
        const Vec back = (Vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16);
        _mm256_mask_storeu_epi16(high + i, first(n), rounded);
        store_first(low + i, v - back, n);
    }
}

/// Returns 16 bf16 of pixel p and of the next pixel as 16 pairs.
inline __m512i load_pairs(const uint16_t* p, const uint16_t* next, __mmask16 lanes, __mmask16 next_lanes) {
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, p));
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(next_lanes, next));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/// Transposes 16 x 16 values of 32 bits.
inline void transpose_16(__m512i (&v)[16]) {
    __m512i t[16];
    RG_UNROLL
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    RG_UNROLL
    for (int i = 0; i < 16; i += 4) {
        v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    RG_UNROLL
    for (int i = 0; i < 4; ++i) { // collects quarters of the rows 4 j + i
        t[i] = _mm512_shuffle_i32x4(v[i], v[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(v[i], v[4 + i], 0xDD);
        t[8 + i] = _mm512_shuffle_i32x4(v[8 + i], v[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(v[8 + i], v[12 + i], 0xDD);
    }
    RG_UNROLL
    for (int i = 0; i < 4; ++i) {
        v[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
        v[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xDD);
        v[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
        v[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xDD);
    }
}

void transpose(const uint16_t* pixels, int64_t count, int64_t c, uint16_t* out, int64_t line) {
    for (int64_t c0 = 0; c0 < c; c0 += kSide, out += kSide * line) {
        const __mmask16 lanes = first(int(c - c0 < kSide ? c - c0 : kSide));
        for (int64_t p = 0; p < count; p += kRun) {
            __m512i v[16];
            RG_UNROLL
            for (int i = 0; i < 16; ++i) {
                const uint16_t* pixel = pixels + (p + 2 * i) * c + c0;
                const int64_t left = count - p - 2 * i;
                v[i] = load_pairs(pixel, pixel + c, left > 0 ? lanes : __mmask16(0), left > 1 ? lanes : __mmask16(0));
            }
            transpose_16(v);
            RG_UNROLL
            for (int i = 0; i < 16; ++i) _mm512_storeu_si512(out + i * line + p, v[i]);
        }
    }
}

void interleave(const uint16_t* pixels, int64_t count, int64_t step, int64_t c, int64_t pairs, uint16_t* out,
                int64_t block) {
    for (int64_t c0 = 0; c0 < c; c0 += kSide, out += block) {
        const __mmask16 lanes = first(int(c - c0 < kSide ? c - c0 : kSide));
        const uint16_t* pixel = pixels + c0;
        int64_t i = 0;
        for (; 2 * i + 1 < count && i < pairs; ++i, pixel += 2 * step)
            _mm512_storeu_si512(out + i * 2 * kSide, load_pairs(pixel, pixel + step, lanes, lanes));
        for (; i < pairs; ++i, pixel += 2 * step)
            _mm512_storeu_si512(out + i * 2 * kSide, load_pairs(pixel, pixel, 2 * i < count ? lanes : __mmask16(0), 0));
    }
}

// In the weight gradient, tiles 0 to 5 hold results, one for each Column. Tile 6 holds dy of 16 filters, and tile 7
// holds x of one Column.
constexpr int kColumns = 6;

/// Sixteen columns of the weight gradient: the channels of x in one tile, at one tap.
struct Column {
    const uint16_t* x; // first run of pixels of these channels
    float* acc;        // [16 filters][c_step]
};

/// For each of N Columns, adds the sum over the pixels of dy[filter][pixel] * x[pixel][channel] to its acc, for 16
/// filters and 16 channels.
template <int N>
void gradient_block(const TileGradient& g, const uint16_t* dy, const Column* columns) {
    const int64_t line = g.line * 2, acc_line = g.c_step * 4;
#define RG_EACH_COLUMN(X) X(0) X(1) X(2) X(3) X(4) X(5)
#define RG_LOAD(n)                                                                                                     \
    if constexpr (n < N) _tile_loadd(n, columns[n].acc, acc_line);
    RG_EACH_COLUMN(RG_LOAD)
    for (int64_t image = 0; image < g.images; ++image)
        for (int64_t run = 0; run < g.runs; ++run, dy += kRun) {
            const int64_t offset = image * g.image + run * kTile;
            _tile_loadd(6, dy, line);
#define RG_MULTIPLY(n)                                                                                                 \
    if constexpr (n < N) {                                                                                             \
        _tile_loadd(7, columns[n].x + offset, 64);                                                                     \
        _tile_dpbf16ps(n, 6, 7);                                                                                       \
    }
            RG_EACH_COLUMN(RG_MULTIPLY)
        }
#define RG_STORE(n)                                                                                                    \
    if constexpr (n < N) _tile_stored(n, columns[n].acc, acc_line);
    RG_EACH_COLUMN(RG_STORE)
#undef RG_EACH_COLUMN
#undef RG_LOAD
#undef RG_MULTIPLY
#undef RG_STORE
}

void accumulate(const TileGradient& g, const uint16_t* dy, const uint16_t* x, float* acc) {
    configure();
    // The taps in one filter column read the same copies of x, a few rows apart. So process these taps one after the
    // other, for one tile of channels. A block of Columns then reads little more of x than a single tap would, and
    // finds the rows that it reads again in the first-level cache.
    const int64_t tiles = g.c_step / kSide;
    Column block[kColumns];
    int count = 0;
    const auto flush = [&] {
        constexpr void (*kBlocks[])(const TileGradient&, const uint16_t*, const Column*) = {
            nullptr,           gradient_block<1>, gradient_block<2>, gradient_block<3>,
            gradient_block<4>, gradient_block<5>, gradient_block<6>};
        for (int64_t k = 0; k < g.k_step; k += kSide) {
            kBlocks[count](g, dy + k * g.line, block);
            for (int i = 0; i < count; ++i) block[i].acc += kSide * g.c_step;
        }
        count = 0;
    };
    for (int64_t tile = 0; tile < tiles; ++tile)
        for (int64_t s = 0; s < g.s; ++s)
            for (int64_t r = 0; r < g.r; ++r) {
                block[count++] = {x + tile * g.block + (r % g.stride * g.s + s) * g.copy + r / g.stride * g.row,
                                  acc + (r * g.s + s) * g.k_step * g.c_step + tile * kSide};
                if (count == kColumns) flush();
            }
    if (count > 0) flush();
}

} // namespace

extern const TileKernels kTiles;
const TileKernels kTiles{forward<uint16_t>, forward<float>, split, transpose, interleave, accumulate};

} // namespace rg::cpu::RG_ISA
