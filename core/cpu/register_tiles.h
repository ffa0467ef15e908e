// Two register tiles, in which the direct and the Winograd convolutions spend most of their time.
//
// Both compute outer products in registers: MR scalars times NV vectors, 2 * NV * MR * width operations for MR + NV
// loads. In the forward pass, the scalars are one input value of each of MR neighbouring pixels, and the vectors are
// the values of NV * width filters at one tap. The data gradient is a forward pass with rotated filters. In the weight
// gradient, the scalars are the inputs of MR taps in one pixel's window, and the vectors are dy at that pixel. In
// Winograd's matrix products, the tiles of 4 x 4 results take the place of the pixels, and channels that of the taps.
#pragma once

#include "core/cpu/simd.h"

#include "core/cpu/kernels.h"

namespace rg::cpu::RG_ISA {

namespace {

/// Number of pixels in the longest forward tile of NV vectors. A longer tile reads the filters less often, but needs NV
/// more registers per pixel for the sums.
template <int NV>
constexpr int kLongest = kRegisters == 16 ? (NV == 1 ? 12 : 6)
                         : NV == 1        ? 16
                         : kLaneFactors   ? 8
                                          : 14;
// A weight-gradient tile has up to kTaps taps of 2 vectors, or up to 2 * kTaps taps of 1 vector.
// With 12 taps on Arm, g++ 12 would keep some of the sums in memory.
constexpr int kTaps = kLaneFactors ? 10 : kRegisters == 32 ? 12 : 6;

/// Number of taps per turn of a loop. With few registers, tiles are small, and the loop itself would take a tenth of
/// the instructions.
constexpr int kUnrolled = kRegisters == 16 ? 4 : 1;

constexpr int64_t kLine = 16; // floats in a cache line

/// Filters that a tile prefetches while it computes: `lines` cache lines per tap, from `from` on.
struct Prefetch {
    const float* from = nullptr;
    int64_t lines = 0;
};

/// Returns the filters that tile number `tile` of `tiles` tiles should prefetch. All these tiles multiply the same
/// block of filters, w, of `taps` taps of NV vectors. The next block follows in memory, and may come from the
/// last-level cache, which is slow. So the first tiles prefetch it, each one line per tap. If there are too few tiles
/// for that, each prefetches filters that it reads kAhead floats later, since the processor itself prefetches only to
/// the end of a page. Short blocks need no prefetch: they are read from the second-level cache, where small filters
/// stay.
template <int NV>
Prefetch prefetch_share(const float* w, int64_t taps, int64_t tile, int64_t tiles) {
    constexpr int64_t kLong = 128, kAhead = 1024, kLines = (NV * kWidth + kLine - 1) / kLine; // kLines: lines per tap
    if (taps < kLong) return {};
    if (tiles < kLines) return {w + kAhead, kLines};
    return tile < kLines ? Prefetch{w + taps * NV * kWidth + tile * taps * kLine, 1} : Prefetch{};
}

/// Splits `total` into as few parts of at most `most` as possible, whose lengths differ by at most one. So no register
/// tile is much shorter than the others. A very short one would wait for the results of its own multiply-adds.
struct EvenParts {
    EvenParts(int64_t total, int64_t most)
        : count((total + most - 1) / most), shortest(count ? total / count : 0), longer(count ? total % count : 0) {}
    int64_t length(int64_t part) const { return shortest + (part < longer); }
    int64_t longest() const { return length(0); }
    int64_t count, shortest, longer; // the first `longer` parts are longer by one
};

/// Number of pixels in the longest tile whose pixels may be anywhere in the image. There are too few registers for the
/// addresses of more. So in a longer tile, pixel i >= kBases uses the address of pixel i - kBases plus a fixed
/// distance.
constexpr int kBases = 8;

/// Computes acc[i][v] += sum over j of pixel[i][j] * w[j][v], for MR pixels and NV vectors of output channels. `far` is
/// the distance from pixel i to pixel i + kBases.
template <int MR, int NV>
inline __attribute__((always_inline)) void accumulate(const float* const (&pixel)[MR < kBases ? MR : kBases],
                                                      int64_t far, int64_t taps, const float* w, Prefetch ahead,
                                                      Vec (&acc)[MR][NV]) {
    int64_t j = 0;
    if constexpr (kLaneFactors && MR * (NV + 1) + NV <= kRegisters) {
        // One load per pixel serves several taps.
#pragma GCC unroll 1
        for (; j + kWidth <= taps; j += kWidth) {
            Vec inputs[MR];
            RG_UNROLL
            for (int i = 0; i < MR; ++i) inputs[i] = load(pixel[i % kBases] + (i < kBases ? j : far + j));
            RG_UNROLL
            for (int tap = 0; tap < kWidth; ++tap, w += NV * kWidth) {
                RG_UNROLL
                for (int v = 0; v < NV; ++v) {
                    const Vec filter = load(w + v * kWidth);
                    RG_UNROLL
                    for (int i = 0; i < MR; ++i) acc[i][v] += inputs[i][tap] * filter;
                }
            }
        }
    }
    const auto add_tap = [&]() __attribute__((always_inline)) {
        Vec filter[NV];
        RG_UNROLL
        for (int v = 0; v < NV; ++v) filter[v] = load(w + v * kWidth);
        RG_UNROLL
        for (int i = 0; i < MR; ++i) {
            RG_UNROLL
            for (int v = 0; v < NV; ++v)
                acc[i][v] += (i < kBases ? pixel[i % kBases][j] : pixel[i % kBases][far + j]) * filter[v];
        }
    };
    if (ahead.lines > 0) {
#pragma GCC unroll 1
        for (; j < taps; ++j, w += NV * kWidth) {
            for (int line = 0; line < ahead.lines; ++line, ahead.from += kLine) __builtin_prefetch(ahead.from);
            add_tap();
        }
    }
#pragma GCC unroll kUnrolled
    for (; j < taps; ++j, w += NV * kWidth) add_tap();
}

/// Computes dw[i][k] += sum over rows and pixels of image[pixel][i] * dy[pixel][k], for MR taps i, NV vectors of k.
template <int MR, int NV>
void wgrad_tile(const ConvImage& g, int64_t rows, const float* image, const float* dy, float* dw) {
    Vec acc[MR][NV];
    RG_UNROLL
    for (int i = 0; i < MR; ++i) {
        RG_UNROLL
        for (int v = 0; v < NV; ++v) acc[i][v] = load(dw + i * g.k + v * kWidth);
    }
    for (int64_t p = 0; p < rows; ++p, image += g.row) {
        const float* x = image;
#pragma GCC unroll kUnrolled
        for (int64_t q = 0; q < g.q; ++q, x += g.step, dy += g.k) {
            Vec grad[NV];
            RG_UNROLL
            for (int v = 0; v < NV; ++v) grad[v] = load(dy + v * kWidth);
            RG_UNROLL
            for (int i = 0; i < MR; ++i) {
                RG_UNROLL
                for (int v = 0; v < NV; ++v) acc[i][v] += x[i] * grad[v];
            }
        }
    }
    RG_UNROLL
    for (int i = 0; i < MR; ++i) {
        RG_UNROLL
        for (int v = 0; v < NV; ++v) store(dw + i * g.k + v * kWidth, acc[i][v]);
    }
}

using WgradTile = void (*)(const ConvImage&, int64_t, const float*, const float*, float*);

template <int NV, int MR = NV == 1 ? 2 * kTaps : kTaps>
WgradTile wgrad_tile_of(int64_t taps) {
    if constexpr (MR > 1)
        if (taps < MR) return wgrad_tile_of<NV, MR - 1>(taps);
    return wgrad_tile<MR, NV>;
}

} // namespace

} // namespace rg::cpu::RG_ISA
