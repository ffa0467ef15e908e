// Convolution in groups of few channels, depthwise included: each lane of a vector computes one channel of the result.
// conv_groups.cpp calls these kernels, and rearranges the image for them with spread() where necessary.
#include "ringgrad/core/cpu/simd.h"

#include "ringgrad/core/cpu/kernels.h"

namespace rg::cpu::RG_ISA {

namespace {

// A forward tile has up to kPixels result pixels. A weight-gradient tile has up to kLaneTaps taps. A full tile has
// enough independent sums to hide the latency of the multiply-adds.
constexpr int kPixels = kRegisters == 32 ? 14 : 8, kLaneTaps = kRegisters == 32 ? 12 : 9;

/// Calls f(first channel, number of lanes) for the vectors of a pixel with `lanes` channels. For all but an incomplete
/// last vector, the number is the constant kWidth.
template <class F>
inline __attribute__((always_inline)) void each_vector(int64_t lanes, F f) {
    int64_t c = 0;
    for (; c + kWidth <= lanes; c += kWidth) f(c, kWidth);
    if (c < lanes) f(c, int(lanes - c));
}

/// Computes MR consecutive result pixels of a LaneRow.
template <int MR>
void forward_tile(const LaneRow& g, const float* image, const float* w, const float* bias, float* y) {
    each_vector(
        g.lanes, [ =, &g ](int64_t c, int lanes) __attribute__((always_inline)) {
            Vec acc[MR];
            RG_UNROLL
            for (int i = 0; i < MR; ++i) acc[i] = load(bias + c);
            for (int64_t t = 0; t < g.count; ++t) {
                const Vec filter = load(w + g.taps[t].filter + c);
                const float* const x = image + g.taps[t].image + c;
                RG_UNROLL
                for (int i = 0; i < MR; ++i) acc[i] += filter * load_first(x + i * g.step, lanes);
            }
            RG_UNROLL
            for (int i = 0; i < MR; ++i) store_first(y + i * g.y_step + c, acc[i], lanes);
        });
}

using ForwardTile = void (*)(const LaneRow&, const float*, const float*, const float*, float*);

template <int MR = kPixels>
ForwardTile forward_tile_of(int64_t pixels) {
    if constexpr (MR > 1)
        if (pixels < MR) return forward_tile_of<MR - 1>(pixels);
    return forward_tile<MR>;
}

void forward(const LaneRow& g, const float* image, const float* w, const float* bias, float* y) {
    for (int64_t q = 0; q < g.q; q += kPixels)
        forward_tile_of(g.q - q)(g, image + q * g.step, w, bias, y + q * g.y_step);
}

/// Adds the weight gradient of MR taps.
template <int MR>
void lane_wgrad_tile(const LaneRow& g, const LaneTap* taps, const float* image, const float* dy, float* dw) {
    each_vector(
        g.lanes, [ =, &g ](int64_t c, int lanes) __attribute__((always_inline)) {
            Vec acc[MR];
            RG_UNROLL
            for (int i = 0; i < MR; ++i) acc[i] = load(dw + taps[i].filter + c);
            const float *x = image + c, *from = dy + c;
            for (int64_t q = 0; q < g.q; ++q, x += g.step, from += g.y_step) {
                const Vec gradient = load_first(from, lanes);
                RG_UNROLL
                for (int i = 0; i < MR; ++i) acc[i] += gradient * load_first(x + taps[i].image, lanes);
            }
            RG_UNROLL
            for (int i = 0; i < MR; ++i) store(dw + taps[i].filter + c, acc[i]);
        });
}

using LaneWgradTile = void (*)(const LaneRow&, const LaneTap*, const float*, const float*, float*);

template <int MR = kLaneTaps>
LaneWgradTile lane_tile_of(int64_t taps) {
    if constexpr (MR > 1)
        if (taps < MR) return lane_tile_of<MR - 1>(taps);
    return lane_wgrad_tile<MR>;
}

void wgrad(const LaneRow& g, const float* image, const float* dy, float* dw) {
    for (int64_t t = 0; t < g.count; t += kLaneTaps) lane_tile_of(g.count - t)(g, g.taps + t, image, dy, dw);
}

void spread(const float* from, int64_t pixels, int64_t channels, const LaneSources* sources, int64_t count, float* to) {
    for (int64_t pixel = 0; pixel < pixels; ++pixel, from += channels, to += count)
        for (int64_t i = 0; i < count; i += kWidth) {
            const LaneSources& s = sources[i / kWidth];
            const float* const x = from + s.first;
            const int lanes = lanes_at(i, count), readable = lanes_at(s.first, channels);
            if (s.reach <= kWidth)
                store_first(to + i, permute(load_first(x, readable), s.place), lanes);
            else
                for (int j = 0; j < lanes; ++j) to[i + j] = x[s.place[j]];
        }
}

} // namespace

extern const LaneKernels kLanes;
const LaneKernels kLanes{forward, wgrad, spread};

} // namespace rg::cpu::RG_ISA
