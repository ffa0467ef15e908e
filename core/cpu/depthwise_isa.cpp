// Depthwise convolution. A lane of a vector is a channel, so nothing is rearranged. depthwise.h lists the taps that the
// results of a row use, without those in the padding, so the loops here have no code for borders.
#include "core/cpu/register_tiles.h"

namespace rg::cpu::RG_ISA {

namespace {

/// Most result pixels in a tile: enough independent sums to hide the latency of the multiply-adds. With the taps of a
/// filter row and a value of x, they fit 16 registers.
constexpr int kPixels = 8;

/// Computes MR results of a DepthwiseRow, the first of which reads x from `from` on. `kTaps` is DepthwiseRow::taps.
/// With kShare, neighbouring results read x at a distance of one tap, so a tile loads each value only once.
template <int MR, int kTaps, bool kShare>
void forward_tile(const DepthwiseRow& g, int64_t from, const float* filters, Vec least, const ConvResult<float>& to) {
    each_vector(
        g.c, [ =, &g, &to ](int64_t c, int lanes) __attribute__((always_inline)) {
            Vec acc[MR];
            RG_UNROLL
            for (int i = 0; i < MR; ++i) acc[i] = load(to.bias + c);
            for (int64_t row = 0; row < g.rows; ++row) {
                const float *x = g.sources[row].x + from + c, *w = filters + g.sources[row].w + c;
                Vec filter[kTaps];
                RG_UNROLL
                for (int s = 0; s < kTaps; ++s) filter[s] = load(w + s * g.w_step);
                RG_UNROLL
                for (int j = 0; j < (kShare ? MR + kTaps - 1 : MR); ++j, x += g.step) {
                    if constexpr (kShare) {
                        const Vec value = load_first(x, lanes);
                        RG_UNROLL
                        for (int s = 0; s < kTaps; ++s)
                            if (j >= s && j - s < MR) acc[j - s] += filter[s] * value;
                    } else {
                        RG_UNROLL
                        for (int s = 0; s < kTaps; ++s) acc[j] += filter[s] * load_first(x + s * g.tap_step, lanes);
                    }
                }
            }
            RG_UNROLL
            for (int i = 0; i < MR; ++i) store_first(to.y + i * g.y_step + c, larger(least, acc[i]), lanes);
        });
}

using ForwardTile = void (*)(const DepthwiseRow&, int64_t, const float*, Vec, const ConvResult<float>&);

template <int kTaps, bool kShare, int MR = kPixels>
ForwardTile forward_tile_of(int64_t pixels) {
    if constexpr (MR > 1)
        if (pixels < MR) return forward_tile_of<kTaps, kShare, MR - 1>(pixels);
    return forward_tile<MR, kTaps, kShare>;
}

void forward(const DepthwiseRow& g, const float* filters, const ConvResult<float>& to) {
    const bool share = g.step == g.tap_step;
    const auto tile_of = g.taps == 1   ? forward_tile_of<1, false>
                         : g.taps == 3 ? (share ? forward_tile_of<3, true> : forward_tile_of<3, false>)
                                       : (share ? forward_tile_of<5, true> : forward_tile_of<5, false>);
    const EvenParts tiles(g.q, kPixels);
    const ForwardTile tile = tile_of(tiles.shortest), longer = tile_of(tiles.longest());
    for (int64_t t = 0, q = 0; t < tiles.count; q += tiles.length(t), ++t)
        (tiles.length(t) > tiles.shortest ? longer : tile)(g, q * g.step, filters, least_result(to.relu),
                                                           to.at(q * g.y_step, 0));
}

/// Adds the weight gradient of `kTaps` taps of each of kRows sources.
template <int kTaps, int kRows>
void wgrad_tile(const DepthwiseRow& g, const DepthwiseSource* sources, const float* dy, float* dw) {
    each_vector(
        g.c, [ =, &g ](int64_t c, int lanes) __attribute__((always_inline)) {
            Vec acc[kRows][kTaps];
            const float* x[kRows];
            RG_UNROLL
            for (int i = 0; i < kRows; ++i) {
                x[i] = sources[i].x + c;
                RG_UNROLL
                for (int s = 0; s < kTaps; ++s) acc[i][s] = load(dw + sources[i].w + s * g.w_step + c);
            }
            const float* from = dy + c;
            for (int64_t q = 0; q < g.q; ++q, from += g.y_step) {
                const Vec gradient = load_first(from, lanes);
                RG_UNROLL
                for (int i = 0; i < kRows; ++i) {
                    RG_UNROLL
                    for (int s = 0; s < kTaps; ++s) acc[i][s] += gradient * load_first(x[i] + s * g.tap_step, lanes);
                    x[i] += g.step;
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
