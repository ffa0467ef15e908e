// Depthwise convolution. A lane of a vector is a channel, so nothing is rearranged. depthwise.h lists the taps that the
// results of a row use, without those in the padding, so the loops here have no code for borders.
#include "core/cpu/register_tiles.h"

namespace rg::cpu::RG_ISA {

namespace {

/// Most result pixels in a tile: enough independent sums to hide the latency of the multiply-adds. With the taps of a
/// filter row and a value of x, they fit 16 registers.
constexpr int kPixels = 8;

/// How the results of a tile use the values of x: each loads its own, or they share them. In a cut tile, they share
/// pixels [begin, end) of the tile, and the others lie in the padding.
enum class Loads { own, shared, cut };

/// Computes MR results of a DepthwiseRow. The first reads x from `from` on. `kTaps` is DepthwiseRow::taps.
template <int MR, int kTaps, Loads kLoads>
void forward_tile(const DepthwiseRow& g, int64_t from, int64_t begin, int64_t end, const float* filters,
                  const ConvResult<float>& to) {
    const Vec least = splat(to.limits.least), most = splat(to.limits.most);
    each_vector(
        g.c, [ =, &g, &to ](int64_t c, int lanes) __attribute__((always_inline)) {
            Vec acc[MR];
            RG_UNROLL
            for (int i = 0; i < MR; ++i) acc[i] = load(to.bias + c);
            for (int64_t row = 0; row < g.rows; ++row) {
                const float *x = g.sources[row].x + c, *w = filters + g.sources[row].w + c;
                Vec filter[kTaps];
                RG_UNROLL
                for (int s = 0; s < kTaps; ++s) filter[s] = load(w + s * g.w_step);
                RG_UNROLL
                for (int j = 0; j < (kLoads == Loads::own ? MR : MR + kTaps - 1); ++j) {
                    const int64_t at = from + j * g.step; // may lie before x, in a tile that is cut
                    if constexpr (kLoads == Loads::own) {
                        RG_UNROLL
                        for (int s = 0; s < kTaps; ++s)
                            acc[j] += filter[s] * load_first(x + at + s * g.tap_step, lanes);
                    } else {
                        if (kLoads == Loads::cut && (j < begin || j >= end)) continue;
                        const Vec value = load_first(x + at, lanes);
                        RG_UNROLL
                        for (int s = 0; s < kTaps; ++s)
                            if (j >= s && j - s < MR) acc[j - s] += filter[s] * value;
                    }
                }
            }
            RG_UNROLL
            for (int i = 0; i < MR; ++i) store_first(to.y + i * g.y_step + c, clamp(acc[i], least, most), lanes);
        });
}

using ForwardTile = void (*)(const DepthwiseRow&, int64_t, int64_t, int64_t, const float*, const ConvResult<float>&);

template <int kTaps, Loads kLoads, int MR = kPixels>
ForwardTile forward_tile_of(int64_t pixels) {
    if constexpr (MR > 1)
        if (pixels < MR) return forward_tile_of<kTaps, kLoads, MR - 1>(pixels);
    return forward_tile<MR, kTaps, kLoads>;
}

template <Loads kLoads>
ForwardTile forward_tile_of(int64_t taps, int64_t pixels) {
    if constexpr (kLoads == Loads::own)
        if (taps == 1) return forward_tile_of<1, kLoads>(pixels);
    return taps == 3 ? forward_tile_of<3, kLoads>(pixels) : forward_tile_of<5, kLoads>(pixels);
}

void forward(const DepthwiseRow& g, const float* filters, const ConvResult<float>& to) {
    const bool share = g.step == g.tap_step && g.taps > 1;
    const EvenParts tiles(g.q, kPixels);
    for (int64_t t = 0, q = 0, length; t < tiles.count; ++t, q += length) {
        length = tiles.length(t);
        const int64_t begin = g.left - q, end = g.q + g.taps - 1 - g.right - q;
        const ForwardTile tile = !share ? forward_tile_of<Loads::own>(g.taps, length)
                                 : begin <= 0 && end >= length + g.taps - 1
                                     ? forward_tile_of<Loads::shared>(g.taps, length)
                                     : forward_tile_of<Loads::cut>(g.taps, length);
        tile(g, -begin * g.step, begin, end, filters, to.at(q * g.y_step, 0));
    }
}

/// Adds the weight gradient of `kTaps` taps of each of kRows sources.
template <int kTaps, int kRows>
void wgrad_tile(const DepthwiseRow& g, const DepthwiseSource* sources, const float* dy, float* dw) {
    each_vector(
        g.c, [ =, &g ](int64_t c, int lanes) __attribute__((always_inline)) {
            Vec acc[kRows][kTaps];
            RG_UNROLL
            for (int i = 0; i < kRows; ++i) {
                RG_UNROLL
                for (int s = 0; s < kTaps; ++s) acc[i][s] = load(dw + sources[i].w + s * g.w_step + c);
            }
            const int64_t pixels = g.q + kTaps - 1 - g.right; // the last one of x, plus 1
            for (int64_t q = 0; q < g.q; ++q) {
                const Vec gradient = load_first(dy + q * g.y_step + c, lanes);
                const int64_t from = (q - g.left) * g.step + c;
                const auto add = [&](int s) __attribute__((always_inline)) {
                    RG_UNROLL
                    for (int i = 0; i < kRows; ++i)
                        acc[i][s] += gradient * load_first(sources[i].x + (from + s * g.tap_step), lanes);
                };
                if (q >= g.left && q + kTaps <= pixels) {
                    RG_UNROLL
                    for (int s = 0; s < kTaps; ++s) add(s);
                } else {
                    RG_UNROLL
                    for (int s = 0; s < kTaps; ++s)
                        if (q + s >= g.left && q + s < pixels) add(s);
                }
            }
            RG_UNROLL
            for (int i = 0; i < kRows; ++i) {
                RG_UNROLL
                for (int s = 0; s < kTaps; ++s) store(dw + sources[i].w + s * g.w_step + c, acc[i][s]);
            }
        });
}

/// Adds the weight gradient of the sources from `first` on, three at a time: up to 15 sums fit the registers.
template <int kTaps>
void wgrad_tiles(const DepthwiseRow& g, const float* dy, float* dw) {
    int64_t i = 0;
    for (; i + 3 <= g.rows; i += 3) wgrad_tile<kTaps, 3>(g, g.sources + i, dy, dw);
    if (i + 2 == g.rows) wgrad_tile<kTaps, 2>(g, g.sources + i, dy, dw);
    if (i + 1 == g.rows) wgrad_tile<kTaps, 1>(g, g.sources + i, dy, dw);
}

void wgrad(const DepthwiseRow& g, const float* dy, float* dw) {
    (g.taps == 1 ? wgrad_tiles<1> : g.taps == 3 ? wgrad_tiles<3> : wgrad_tiles<5>)(g, dy, dw);
}

} // namespace

extern const DepthwiseKernels kDepthwise;
const DepthwiseKernels kDepthwise{forward, wgrad};

} // namespace rg::cpu::RG_ISA
