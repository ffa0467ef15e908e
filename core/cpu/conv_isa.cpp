// Direct convolution of one padded image: the loops around the register tiles of register_tiles.h. The loops read the
// image itself, without a copy for each tap (im2col), and split the work into parts that stay in cache.
#include "core/cpu/register_tiles.h"

namespace rg::cpu::RG_ISA {

namespace {

/// The filter values that one pass over the image keeps in cache: taps [j0, j1) of runs [run0, run1) (see ConvImage).
struct FilterBlock {
    int64_t run0, run1, j0, j1;
    const float* w;    // packed filters of up to 2 vectors of output channels
    const float* bias; // the result starts at the bias; null: the pass adds to the result of the passes before
    int last;          // number of output channels in the last vector
    Limits limits;     // of the results, if the pass completes them
};

/// The pixels of a tile, as distances in the image and in the result.
struct TilePixels {
    static constexpr int kMost = 16;
    int64_t x[kMost], y[kMost];
};

template <int MR, int NV>
void conv_tile(const ConvImage& g, const FilterBlock& block, Prefetch ahead, const TilePixels& at, const float* image,
               float* y) {
    Vec acc[MR][NV];
    RG_UNROLL
    for (int i = 0; i < MR; ++i) {
        RG_UNROLL
        for (int v = 0; v < NV; ++v) {
            const float* from = block.bias ? block.bias + v * kWidth : y + at.y[i] + v * kWidth;
            acc[i][v] = v == NV - 1 && block.last < kWidth ? load_first(from, block.last) : load(from);
        }
    }
    for (int64_t run = block.run0; run < block.run1; ++run) {
        const float* pixel[MR < kBases ? MR : kBases];
        RG_UNROLL
        for (int i = 0; i < MR && i < kBases; ++i) pixel[i] = image + at.x[i] + g.run_start[run] + block.j0;
        accumulate<MR, NV>(pixel, kBases * g.step, block.j1 - block.j0,
                           block.w + (run * g.taps + block.j0) * NV * kWidth, ahead, acc);
    }
    const Vec least = splat(block.limits.least), most = splat(block.limits.most);
    RG_UNROLL
    for (int i = 0; i < MR; ++i) {
        RG_UNROLL
        for (int v = 0; v < NV; ++v) {
            float* to = y + at.y[i] + v * kWidth;
            const Vec result = clamp(acc[i][v], least, most);
            if (v == NV - 1 && block.last < kWidth)
                store_first(to, result, block.last);
            else
                store(to, result);
        }
    }
}

using ConvTile = void (*)(const ConvImage&, const FilterBlock&, Prefetch, const TilePixels&, const float*, float*);

template <int NV, int MR = kLongest<NV>>
ConvTile conv_tile_of(int64_t pixels) {
    if constexpr (MR > 1)
        if (pixels < MR) return conv_tile_of<NV, MR - 1>(pixels);
    return conv_tile<MR, NV>;
}

template <int NV>
void conv_filters(const ConvImage& g, const FilterBlock& block, const float* padded, float* y) {
    // A tile of few pixels may begin in one row and end in the next. A share may have no row (g.p is 0).
    constexpr bool kAnywhere = kLongest<NV> <= kBases;
    const int64_t rows = kAnywhere ? 1 : g.p, columns = kAnywhere ? g.p * g.q : g.q;
    const EvenParts tiles(columns, kLongest<NV>);
    const ConvTile tile = conv_tile_of<NV>(tiles.shortest), longer = conv_tile_of<NV>(tiles.longest());
    const float* const w = block.w + (block.run0 * g.taps + block.j0) * NV * kWidth;
    const int64_t taps =
        block.run1 - block.run0 == 1 ? block.j1 - block.j0 : 0; // 0: no prefetch; several runs are short
    const int64_t next_row_x = g.row - g.q * g.step, next_row_y = g.y_row - g.q * g.y_step; // from the end of a row
    int64_t q = 0, x = 0, at_y = 0;
    for (int64_t t = 0; t < rows * tiles.count; ++t) {
        static_assert(kLongest<NV> <= TilePixels::kMost);
        TilePixels at;
        const int64_t length = tiles.length(kAnywhere ? t : t % tiles.count);
        for (int64_t i = 0; i < length; ++i, x += g.step, at_y += g.y_step) {
            if (q == g.q) q = 0, x += next_row_x, at_y += next_row_y;
            ++q, at.x[i] = x, at.y[i] = at_y;
        }
        const Prefetch ahead = prefetch_share<NV>(w, taps, t, rows * tiles.count);
        (length > tiles.shortest ? longer : tile)(g, block, ahead, at, padded, y);
    }
}

/// Packed filters should stay in the first-level cache while image rows stream through it. If the filters of a block
/// (up to two vectors of output channels) have at most kFilterBytes bytes, they take one pass over the image.
/// Otherwise each run takes one or more passes, each of which reads at most about kBlockBytes bytes of the filters.
constexpr int64_t kFilterBytes = 36 << 10, kBlockBytes = 20 << 10;

/// Computes a block of NV vectors of output channels, with the filters w. `last` is FilterBlock::last.
template <int NV>
void conv_block(const ConvImage& g, const float* padded, const float* w, int last, const ConvResult<float>& to) {
    const auto pass = [&](int64_t run0, int64_t run1, int64_t j0, int64_t j1) {
        const bool first = run0 == 0 && j0 == 0, final = run1 == g.runs && j1 == g.taps;
        const FilterBlock block{.run0 = run0,
                                .run1 = run1,
                                .j0 = j0,
                                .j1 = j1,
                                .w = w,
                                .bias = first ? to.bias : nullptr,
                                .last = last,
                                .limits = final ? to.limits : Limits{}};
        conv_filters<NV>(g, block, padded, to.y);
    };
    constexpr int64_t kTapBytes = NV * kWidth * 4;
    if (g.runs * g.taps * kTapBytes <= kFilterBytes) return pass(0, g.runs, 0, g.taps);
    const int64_t parts = (g.taps * kTapBytes + kBlockBytes - 1) / kBlockBytes, length = (g.taps + parts - 1) / parts;
    for (int64_t run = 0; run < g.runs; ++run)
        for (int64_t j = 0; j < g.taps; j += length) pass(run, run + 1, j, j + length < g.taps ? j + length : g.taps);
}

void forward(const ConvImage& g, const float* padded, const float* packed, const ConvResult<float>& to) {
    for (int64_t k = 0; k < g.k; k += 2 * kWidth) {
        const bool two = g.k - k > kWidth;
        (two ? conv_block<2> : conv_block<1>)(g, padded, packed + k * g.runs * g.taps,
                                              lanes_at(two ? k + kWidth : k, g.k), to.at(k, k));
    }
}

/// A pass of the weight gradient covers a band of result rows. The band's part of the image and of dy has about
/// kBandBytes bytes, and stays in the first-level cache for all taps. Each pass loads and stores dw, so a band has at
/// least kBandPixels pixels, even if these need more bytes. Only the last band of an image may be smaller.
constexpr int64_t kBandBytes = 24 << 10, kBandPixels = 64;

void wgrad(const ConvImage& g, const float* padded, const float* dy, float* dw) {
    const int64_t row_bytes = 4 * (g.row + g.q * g.k);
    const int64_t rows_in_cache = kBandBytes / row_bytes, least_rows = (kBandPixels + g.q - 1) / g.q;
    const int64_t band = rows_in_cache > least_rows ? rows_in_cache : least_rows;
    for (int64_t p = 0; p < g.p; p += band) {
        const int64_t rows = g.p - p < band ? g.p - p : band;
        for (int64_t run = 0; run < g.runs; ++run)
            for (int64_t j = 0; j < g.taps; j += kTaps) {
                const int64_t taps = g.taps - j < kTaps ? g.taps - j : kTaps;
                const float* image = padded + p * g.row + g.run_start[run] + j;
                for (int64_t k = 0; k < g.k; k += 2 * kWidth) {
                    const WgradTile tile = g.k - k > kWidth ? wgrad_tile_of<2>(taps) : wgrad_tile_of<1>(taps);
                    tile(g, rows, image, dy + p * g.q * g.k + k, dw + (run * g.taps + j) * g.k + k);
                }
            }
    }
}

} // namespace

extern const ConvKernels kConv;
const ConvKernels kConv{forward, wgrad};

} // namespace rg::cpu::RG_ISA
