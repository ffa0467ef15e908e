// Direct convolution of one padded image: the loops around the register tiles. They read the image itself, without a
// copy for each tap (im2col), and split the work into blocks that stay in cache.
#include "ringgrad/core/cpu/tiles.h"

namespace rg::cpu::RG_ISA {

namespace {

/// Filter rows [r0, r1), runs [s0, s1) and taps [j0, j1). One pass over the image uses this part of the filter and
/// keeps it in cache.
struct Part {
    int64_t r0, r1, s0, s1, j0, j1;
};

template <int MR, int NV>
void conv_tile(const ConvImage& g, const Part& part, const float* image, const float* w, const float* bias, float* y,
               int last) {
    Vec acc[MR][NV];
    RG_UNROLL
    for (int i = 0; i < MR; ++i) {
        RG_UNROLL
        for (int v = 0; v < NV; ++v) {
            const float* from = bias ? bias + v * kWidth : y + i * g.y_step + v * kWidth;
            acc[i][v] = v == NV - 1 && last < kWidth ? load_first(from, last) : load(from);
        }
    }
    for (int64_t r = part.r0; r < part.r1; ++r)
        for (int64_t s = part.s0; s < part.s1; ++s)
            accumulate<MR, NV>(image + r * g.r_step + s * g.run_step + part.j0, g.step, part.j1 - part.j0,
                               w + ((r * g.runs + s) * g.taps + part.j0) * NV * kWidth, acc);
    RG_UNROLL
    for (int i = 0; i < MR; ++i) {
        RG_UNROLL
        for (int v = 0; v < NV; ++v) {
            float* to = y + i * g.y_step + v * kWidth;
            if (v == NV - 1 && last < kWidth)
                store_first(to, acc[i][v], last);
            else
                store(to, acc[i][v]);
        }
    }
}

using ConvTile = void (*)(const ConvImage&, const Part&, const float*, const float*, const float*, float*, int);

/// Number of pixels in the longest tile with NV vectors.
template <int NV>
constexpr int kLongest = NV == 1 ? 2 * kPixels : kPixels;

template <int NV, int MR = kLongest<NV>>
ConvTile conv_tile_of(int64_t pixels) {
    if constexpr (MR > 1)
        if (pixels < MR) return conv_tile_of<NV, MR - 1>(pixels);
    return conv_tile<MR, NV>;
}

template <int NV>
void conv_part(const ConvImage& g, const Part& part, const float* padded, const float* w, const float* bias, float* y,
               int last) {
    // Split a row into tiles whose lengths differ by at most one pixel. A very short tile would wait for the results of
    // its own multiply-adds.
    const int64_t tiles = (g.q + kLongest<NV> - 1) / kLongest<NV>, longer = g.q % tiles;
    const ConvTile tile = conv_tile_of<NV>(g.q / tiles), long_tile = conv_tile_of<NV>(g.q / tiles + (longer > 0));
    for (int64_t p = 0; p < g.p; ++p) {
        const float* image = padded + p * g.row;
        float* to = y + p * g.y_row;
        for (int64_t t = 0; t < tiles; ++t) {
            (t < longer ? long_tile : tile)(g, part, image, w, bias, to, last);
            const int64_t pixels = g.q / tiles + (t < longer);
            image += pixels * g.step, to += pixels * g.y_step;
        }
    }
}

/// Bytes of packed filters that stay in the first-level cache while image rows stream through it. Filters of at most
/// kFilterBytes take one pass, larger ones take passes of kPartBytes each.
constexpr int64_t kFilterBytes = 36 << 10, kPartBytes = 20 << 10;

void forward(const ConvImage& g, const float* padded, const float* packed, const float* bias, float* y) {
    for (int64_t k = 0; k < g.k; k += 2 * kWidth) {
        const int64_t channels = g.k - k < 2 * kWidth ? g.k - k : 2 * kWidth;
        const int vectors = channels > kWidth ? 2 : 1;
        const int last = int(channels - (vectors - 1) * kWidth);
        const float* w = packed + k * g.r * g.runs * g.taps;
        const auto pass = [&](const Part& part, bool first) {
            const float* start = first ? bias + k : nullptr;
            if (vectors == 2)
                conv_part<2>(g, part, padded, w, start, y + k, last);
            else
                conv_part<1>(g, part, padded, w, start, y + k, last);
        };
        const int64_t tap_bytes = vectors * kWidth * 4;
        if (g.r * g.runs * g.taps * tap_bytes <= kFilterBytes) {
            pass({0, g.r, 0, g.runs, 0, g.taps}, true);
            continue;
        }
        const int64_t parts = (g.taps * tap_bytes + kPartBytes - 1) / kPartBytes, length = (g.taps + parts - 1) / parts;
        for (int64_t r = 0; r < g.r; ++r)
            for (int64_t s = 0; s < g.runs; ++s)
                for (int64_t j = 0; j < g.taps; j += length)
                    pass({r, r + 1, s, s + 1, j, j + length < g.taps ? j + length : g.taps},
                         r == 0 && s == 0 && j == 0);
    }
}

/// A pass keeps kBandBytes of rows of the image and of dy in the first-level cache, where all taps read them again. A
/// pass covers at least kBandPixels pixels, because each pass also loads and stores dw.
constexpr int64_t kBandBytes = 24 << 10, kBandPixels = 64;

void wgrad(const ConvImage& g, const float* padded, const float* dy, float* dw) {
    const int64_t row_bytes = 4 * (g.row + g.q * g.k);
    const int64_t rows_in_cache = kBandBytes / row_bytes, least_rows = (kBandPixels + g.q - 1) / g.q;
    const int64_t band = rows_in_cache > least_rows ? rows_in_cache : least_rows;
    for (int64_t p = 0; p < g.p; p += band) {
        const int64_t rows = g.p - p < band ? g.p - p : band;
        for (int64_t run = 0; run < g.r * g.runs; ++run)
            for (int64_t j = 0; j < g.taps; j += kTaps) {
                const int64_t taps = g.taps - j < kTaps ? g.taps - j : kTaps;
                const float* image = padded + p * g.row + run / g.runs * g.r_step + run % g.runs * g.run_step + j;
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
