// Convolution in groups of few channels, depthwise included: each lane of a vector computes one channel of the result.
// conv_groups.cpp calls these kernels, and rearranges the image for them with gather() where necessary.
#include "core/cpu/simd.h"

#include "core/cpu/kernels.h"

#include <bit>

namespace rg::cpu::RG_ISA {

namespace {

// A forward tile has up to kPixels result pixels, or half as many if GroupedConvRow::reuse is 2. A weight-gradient tile
// has up to kLaneTaps taps, or up to kThrees times three taps if GroupedConvRow::reuse is 1. So there are enough
// independent sums to hide the latency of the multiply-adds.
constexpr int kPixels = kRegisters == 32 ? 14 : 8, kLaneTaps = kRegisters == 32 ? 12 : 9,
              kThrees = kRegisters == 32 ? 3 : 2;

/// Adds the products of one tap (kernels.h) to the sums of MR result pixels.
template <int MR>
inline __attribute__((always_inline)) void add_tap(const GroupedConvRow& g, const float* x, Vec filter, int lanes,
                                                   Vec* acc) {
    RG_UNROLL
    for (int i = 0; i < MR; ++i) acc[i] += filter * load_first(x + i * g.step, lanes);
}

/// Adds three taps to the sums of MR result pixels. Result pixel i multiplies pixels kReuse * i to kReuse * i + 2 of
/// the image, each of which is loaded once.
template <int MR, int kReuse>
inline __attribute__((always_inline)) void add_taps(const GroupedConvRow& g, const float* x, const Vec (&filters)[3],
                                                    int lanes, Vec* acc) {
    const int64_t step = g.step / kReuse;
    RG_UNROLL
    for (int j = 0; j < kReuse * (MR - 1) + 3; ++j, x += step) {
        const Vec pixel = load_first(x, lanes);
        RG_UNROLL
        for (int s = 0; s < 3; ++s)
            if (j >= s && (j - s) % kReuse == 0 && (j - s) / kReuse < MR) acc[(j - s) / kReuse] += filters[s] * pixel;
    }
}

/// Computes MR consecutive result pixels of a GroupedConvRow whose `reuse` is kReuse.
template <int MR, int kReuse>
void forward_tile(const GroupedConvRow& g, const float* image, const float* w, const float* bias, float* y) {
    each_vector(
        g.lanes, [ =, &g ](int64_t c, int lanes) __attribute__((always_inline)) {
            Vec acc[MR];
            RG_UNROLL
            for (int i = 0; i < MR; ++i) acc[i] = load(bias + c);
            const GroupedConvTap* const end = g.taps + g.count;
            if constexpr (kReuse == 0)
                for (const GroupedConvTap* tap = g.taps; tap < end; ++tap)
                    add_tap<MR>(g, image + tap->image + c, load(w + tap->filter + c), lanes, acc);
            else
                for (const GroupedConvTap* tap = g.taps; tap < end; tap += 3)
                    add_taps<MR, kReuse>(
                        g, image + tap->image + c,
                        {load(w + tap[0].filter + c), load(w + tap[1].filter + c), load(w + tap[2].filter + c)}, lanes,
                        acc);
            RG_UNROLL
            for (int i = 0; i < MR; ++i) {
                store_first(y + i * g.y_step + c, acc[i], lanes);
                if constexpr (kReuse == 0) continue; // no prefetch, since there may be no tap end[-1]
                __builtin_prefetch(image + end[-1].image + g.next + i * g.step + c);
                __builtin_prefetch(y + g.y_next + i * g.y_step + c, 1);
            }
        });
}

/// Computes the result pixels from `q` on, by tiles of MR, and then by smaller ones.
template <int kReuse, int MR = kReuse == 2 ? kPixels / 2 : kPixels>
void forward_tiles(const GroupedConvRow& g, int64_t q, const float* image, const float* w, const float* bias,
                   float* y) {
    for (; q + MR <= g.q; q += MR) forward_tile<MR, kReuse>(g, image + q * g.step, w, bias, y + q * g.y_step);
    if constexpr (MR > 1) forward_tiles<kReuse, int(std::bit_floor(unsigned(MR - 1)))>(g, q, image, w, bias, y);
}

void forward(const GroupedConvRow& g, const float* image, const float* w, const float* bias, float* y) {
    (g.reuse == 1 ? forward_tiles<1> : g.reuse == 2 ? forward_tiles<2> : forward_tiles<0>)(g, 0, image, w, bias, y);
}

/// Adds the weight gradient of MR taps (kernels.h).
template <int MR>
void wgrad_tile(const GroupedConvRow& g, const GroupedConvTap* taps, const float* image, const float* dy, float* dw) {
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

/// Adds the weight gradient of MR times three taps of a GroupedConvRow whose `reuse` is 1. Keeps the last two pixels of
/// each three, since the next result pixel multiplies them, too.
template <int MR>
void wgrad_tile_of_threes(const GroupedConvRow& g, const GroupedConvTap* taps, const float* image, const float* dy,
                          float* dw) {
    each_vector(
        g.lanes, [ =, &g ](int64_t c, int lanes) __attribute__((always_inline)) {
            Vec acc[MR][3], kept[MR][2];
            RG_UNROLL
            for (int i = 0; i < MR; ++i) {
                for (int s = 0; s < 3; ++s) acc[i][s] = load(dw + taps[3 * i + s].filter + c);
                for (int s = 0; s < 2; ++s) kept[i][s] = load_first(image + taps[3 * i + s].image + c, lanes);
            }
            const float *x = image + c, *from = dy + c;
            for (int64_t q = 0; q < g.q; ++q, x += g.step, from += g.y_step) {
                const Vec gradient = load_first(from, lanes);
                __builtin_prefetch(from + g.y_next);
                __builtin_prefetch(x + taps[3 * MR - 1].image + g.next);
                RG_UNROLL
                for (int i = 0; i < MR; ++i) {
                    const Vec pixel = load_first(x + taps[3 * i + 2].image, lanes);
                    acc[i][0] += gradient * kept[i][0];
                    acc[i][1] += gradient * kept[i][1];
                    acc[i][2] += gradient * pixel;
                    kept[i][0] = kept[i][1], kept[i][1] = pixel;
                }
            }
            RG_UNROLL
            for (int i = 0; i < MR; ++i)
                for (int s = 0; s < 3; ++s) store(dw + taps[3 * i + s].filter + c, acc[i][s]);
        });
}

/// Adds the weight gradients of the taps from `t` on, by tiles of MR taps, or threes of taps, and then by smaller ones.
template <bool kThree, int MR = kThree ? kThrees : kLaneTaps>
void wgrad_tiles(const GroupedConvRow& g, int64_t t, const float* image, const float* dy, float* dw) {
    for (constexpr int kTaps = kThree ? 3 * MR : MR; t + kTaps <= g.count; t += kTaps)
        (kThree ? wgrad_tile_of_threes<MR> : wgrad_tile<MR>)(g, g.taps + t, image, dy, dw);
    if constexpr (MR > 1) wgrad_tiles<kThree, MR - 1>(g, t, image, dy, dw);
}

void wgrad(const GroupedConvRow& g, const float* image, const float* dy, float* dw) {
    (g.reuse == 1 ? wgrad_tiles<true> : wgrad_tiles<false>)(g, 0, image, dy, dw);
}

void gather(const float* from, int64_t pixels, int64_t channels, const LaneSources* sources, int64_t count, float* to) {
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
const LaneKernels kLanes{forward, wgrad, gather};

} // namespace rg::cpu::RG_ISA
