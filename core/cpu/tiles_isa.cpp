// Convolution by products of tiles of bf16; tile_products.h has the products. This file is compiled for RG_ISA
// avx512bf16 and amx only, and for the tests with emulated instructions.
//
// With AMX, f32 values use the same tiles: each value is split into the sum of two bf16, and three products replace
// one. The relative RMS error of the result is below 5e-6. Three tile products take about a fifth of the time of the
// AVX-512 multiply-adds that they replace.
//
// In the forward pass, the rows of an input tile are pixels, and its columns are taps. The windows of neighbouring
// pixels begin `step` values apart in the padded image. So a tile is loaded directly from the image, for any number of
// channels. The inputs of a filter row's taps are contiguous. The last run of 32 taps may read values beyond the row's
// taps, and multiplies them by zeros in the filters.
//
// The weight gradient sums over result pixels. dy is transposed to [filter][pixel]. The input x is stored by pairs of
// pixels, [pixel / 2][channel][2]. There is one copy of x for each column of the filter (TileGradient describes strides
// above 1). A copy contains only the pixels that the taps of this column multiply, in the order of the result pixels. A
// tap in another filter row begins whole rows later in the copy. So no product is wasted on padding columns. (Only a
// row with an odd number of pixels gets one zero.) Every load reads whole cache lines. A load across cache lines takes
// twice as long, and loads limit the speed here.
#include "core/cpu/tile_products.h"

namespace rg::cpu::RG_ISA {

namespace {

/// Sums over the pixels of an image, for one vector of channels: the deviations from the first pixel and their squares.
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

/// Writes results + bias to channels [k, k + 16 NK) of y, as far as y has them, within to.limits. `results` has rows
/// of 32 values. Row i belongs to pixel pixels[i] of y, or to none if that is -1. With kStats, adds the values without
/// limits to all_sums.
template <int NK, bool kStats, class T>
void store_results(const TileConv& g, const ConvResult<T>& to, int64_t k, const int32_t* pixels, int rows,
                   const float* results, Sums (&all_sums)[2]) {
    Sums sums[2] = {all_sums[0], all_sums[1]}; // stays in registers; the compiler must assume that y aliases all_sums
    const Vec bias[2] = {load(to.bias + k), load(to.bias + k + (NK > 1 ? kTileSide : 0))};
    const Vec least = splat(to.limits.least), most = splat(to.limits.most);
    const int last = lanes_at(k + (NK - 1) * kTileSide, g.k);
    const bool streams = to.past_cache && aligned(to.y) && g.k * sizeof(T) % 64 == 0; // whole cache lines
    for (int i = 0; i < rows; ++i, results += 2 * kTileSide) {
        if (pixels[i] < 0) continue;
        T* const y = to.y + pixels[i] * g.k + k;
        RG_UNROLL
        for (int n = 0; n < NK; ++n) {
            Vec v = load(results + n * kTileSide) + bias[n];
            if (kStats) sums[n].add(v);
            if (to.limits.least == 0) v = clamp(v, least, most);
            if (streams)
                stream_store(y + n * kTileSide, v);
            else
                store_first(y + n * kTileSide, v, n == NK - 1 ? last : kTileSide);
        }
    }
    all_sums[0] = sums[0], all_sums[1] = sums[1];
}

/// Returns the number of filters, rounded up to a multiple of 16.
int64_t channels_of(const TileConv& g) { return (g.k + kTileSide - 1) / kTileSide * kTileSide; }

template <int NK, bool kStats, class T>
void forward_block(const TileConv& g, const uint16_t* padded, const uint16_t* w, int64_t k, const ConvResult<T>& to,
                   float* stats) {
    constexpr bool kSplit = sizeof(T) == 4;
    alignas(64) float results[2 * kPixels * 2 * kTileSide];
    Sums sums[2];
    for (int64_t t = 0; t < g.tiles; t += 2) {
        const bool two = t + 1 < g.tiles;
        const uint16_t *a = padded + g.from[t], *b = padded + g.from[two ? t + 1 : t];
        (two ? products<2, NK, kSplit> : products<1, NK, kSplit>)(g, a, b, w, results);
        store_results<NK, kStats>(g, to, k, g.to + t * kPixels, two ? 2 * kPixels : kPixels, results, sums);
    }
    const int64_t channels = channels_of(g);
    for (int n = 0; kStats && n < NK; ++n) {
        float* const of_channels = stats + k + n * kTileSide;
        store(of_channels, sums[n].shift);
        store(of_channels + channels, sums[n].sum);
        store(of_channels + 2 * channels, sums[n].squares);
    }
}

template <class T>
void forward(const TileConv& g, const uint16_t* padded, const uint16_t* packed, const ConvResult<T>& to, float* stats) {
    configure();
    const int64_t channels = channels_of(g);
    for (int64_t k = g.k_begin; k < g.k_end; k += 2 * kTileSide) {
        const uint16_t* w = packed + k * g.r * g.runs * kTileRun;
        const bool two = k + kTileSide < channels;
        // The images are the inner loop, so that these filters stay in cache.
        for (int64_t i = 0; i < g.images; ++i) {
            const auto block = two ? (stats ? forward_block<2, true, T> : forward_block<2, false, T>)
                                   : (stats ? forward_block<1, true, T> : forward_block<1, false, T>);
            block(g, padded + i * g.image, w, k, to.at(i * g.y_image, 0), stats ? stats + i * 3 * channels : nullptr);
        }
    }
}

inline Vec widen(__m256i rounded) { return (Vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16); }

void split(const float* x, int64_t count, uint16_t* high, uint16_t* low) {
    for (int64_t i = 0; i < count; i += kWidth) {
        const int n = lanes_at(i, count);
        const Vec v = load_first(x + i, n);
        const __m256i rounded = narrow(v);
        _mm256_mask_storeu_epi16(high + i, first_lanes(n), rounded);
        store_first(low + i, v - widen(rounded), n);
    }
}

/// Returns 16 pairs of bf16: pair i is first[i], second[i].
inline __m512i pair(__m256i first, __m256i second) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(first), _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16));
}

/// Returns 16 pairs of a bf16 at p and a bf16 at `next`, the same channel of the next pixel. Lanes outside of the masks
/// are not read, and are zero.
inline __m512i load_pairs(const uint16_t* p, const uint16_t* next, __mmask16 lanes, __mmask16 next_lanes) {
    return pair(_mm256_maskz_loadu_epi16(lanes, p), _mm256_maskz_loadu_epi16(next_lanes, next));
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
    for (int i = 0; i < 4; ++i) { // combines quarters of v[i], v[4 + i], v[8 + i] and v[12 + i]
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

void transpose_taps(const float* filters, int64_t step, int64_t count, int64_t taps, float* out) {
    for (int64_t tap = 0; tap < taps; tap += kTileSide) {
        const int n = lanes_at(tap, taps);
        __m512i v[16];
        RG_UNROLL
        for (int i = 0; i < 16; ++i) v[i] = (__m512i)(i < count ? load_first(filters + i * step + tap, n) : Vec{});
        transpose_16(v);
        RG_UNROLL
        for (int i = 0; i < 16; ++i) store(out + (tap + i) * kTileSide, (Vec)v[i]);
    }
}

void pack(const float* taps, const float* scale, uint16_t* high, uint16_t* low) {
    for (int i = 0; i < kTileSide; ++i, taps += 2 * kTileSide) {
        const Vec v[2] = {load(taps) * load(scale), load(taps + kTileSide) * load(scale)};
        const __m256i rounded[2] = {narrow(v[0]), narrow(v[1])};
        _mm512_storeu_si512(high + i * kTileRun, pair(rounded[0], rounded[1]));
        if (low)
            _mm512_storeu_si512(low + i * kTileRun,
                                pair(narrow(v[0] - widen(rounded[0])), narrow(v[1] - widen(rounded[1]))));
    }
}

void transpose(const uint16_t* pixels, int64_t count, int64_t c, uint16_t* out, int64_t filter_step) {
    for (int64_t c0 = 0; c0 < c; c0 += kTileSide, out += kTileSide * filter_step) {
        const __mmask16 lanes = first_lanes(lanes_at(c0, c));
        for (int64_t p = 0; p < count; p += kTileRun) {
            __m512i v[16];
            RG_UNROLL
            for (int i = 0; i < 16; ++i) {
                const uint16_t* pixel = pixels + (p + 2 * i) * c + c0;
                const int64_t left = count - p - 2 * i;
                v[i] = load_pairs(pixel, pixel + c, left > 0 ? lanes : __mmask16(0), left > 1 ? lanes : __mmask16(0));
            }
            transpose_16(v);
            RG_UNROLL
            for (int i = 0; i < 16; ++i) _mm512_storeu_si512(out + i * filter_step + p, v[i]);
        }
    }
}

void interleave(const uint16_t* pixels, int64_t count, int64_t step, int64_t c, int64_t pairs, uint16_t* out,
                int64_t block) {
    for (int64_t c0 = 0; c0 < c; c0 += kTileSide, out += block) {
        const __mmask16 lanes = first_lanes(lanes_at(c0, c));
        const uint16_t* pixel = pixels + c0;
        int64_t i = 0;
        for (; 2 * i + 1 < count && i < pairs; ++i, pixel += 2 * step)
            _mm512_storeu_si512(out + i * 2 * kTileSide, load_pairs(pixel, pixel + step, lanes, lanes));
        for (; i < pairs; ++i, pixel += 2 * step)
            _mm512_storeu_si512(out + i * 2 * kTileSide,
                                load_pairs(pixel, pixel, 2 * i < count ? lanes : __mmask16(0), 0));
    }
}

void accumulate(const TileGradient& g, int64_t k, int64_t filters, int64_t column, const uint16_t* dy,
                const uint16_t* x, float* sums) {
    configure();
    // The taps in one filter column are neighbouring Columns. They read the same copies of x (one copy if the stride is
    // 1), a few rows apart. So a block of Columns reads little more of x than a single tap would. It finds the rows
    // that it reads again in the first-level cache.
    WgradColumn block[kTileColumns];
    int count = 0;
    for (int64_t i = column; i < g.columns && count < kTileColumns; ++i) {
        const int64_t tile = i / (g.s * g.r), s = i / g.r % g.s, r = i % g.r;
        block[count++] = {x + tile * g.block + (r % g.stride * g.s + s) * g.copy + r / g.stride * g.row,
                          sums + (k * g.r * g.s + r * g.s + s) * g.padded_c + tile * kTileSide};
    }
    constexpr void (*kBlocks[])(const TileGradient&, const uint16_t*,
                                const WgradColumn*) = {gradient_block<1>, gradient_block<2>, gradient_block<3>,
                                                       gradient_block<4>, gradient_block<5>, gradient_block<6>};
    for (int64_t end = k + filters; k < end; k += kTileSide) {
        kBlocks[count - 1](g, dy + k * g.filter_step, block);
        for (int i = 0; i < count; ++i) block[i].sums += kTileSide * g.r * g.s * g.padded_c;
    }
}

constexpr auto forward_f32() {
    if constexpr (kSplitsF32)
        return forward<float>;
    else
        return nullptr;
}

} // namespace

extern const TileKernels kTiles;
const TileKernels kTiles{kPixels, forward<uint16_t>, forward_f32(), transpose_taps, pack,
                         split,   transpose,         interleave,    accumulate};

} // namespace rg::cpu::RG_ISA
