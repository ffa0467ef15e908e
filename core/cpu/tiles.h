// Two register tiles, in which convolutions without AMX spend nearly all their time. The direct and the Winograd
// kernels use them.
//
// Both are outer products in registers: MR scalars times NV vectors, 2 * NV * MR * width operations for MR + NV loads.
// In the forward pass, the scalars are one input value of each of MR neighbouring pixels, and the vectors are one tap
// of the filters. The data gradient is a forward pass with rotated filters. In the weight gradient, the scalars are MR
// taps of one pixel's window, and the vectors are dy at that pixel.
#pragma once

#include "ringgrad/core/cpu/simd.h"

#include "ringgrad/core/cpu/isa.h"

namespace rg::cpu::RG_ISA {

namespace {

// A forward tile has kPixels pixels of 2 vectors, or up to 2 * kPixels pixels of 1 vector.
constexpr int kPixels = kRegisters == 32 ? 8 : 6;
// A weight-gradient tile has up to kTaps taps of 2 vectors.
constexpr int kTaps = kRegisters == 32 ? 12 : 6;

/// Computes acc[i][v] += sum over j of image[i * step + j] * w[j][v], for MR pixels and NV vectors of output channels.
template <int MR, int NV>
inline __attribute__((always_inline)) void accumulate(const float* image, int64_t step, int64_t taps, const float* w,
                                                      Vec (&acc)[MR][NV]) {
    // There are too few registers for the addresses of all pixels of a long tile. So the pixels from kPixels on use the
    // addresses of the first pixels plus a fixed distance.
    constexpr int kBases = MR < kPixels ? MR : kPixels;
    const float* pixel[kBases];
    RG_UNROLL
    for (int i = 0; i < kBases; ++i) pixel[i] = image + i * step;
    const int64_t far = kPixels * step;
#pragma GCC unroll 1
    for (int64_t j = 0; j < taps; ++j, w += NV * kWidth) {
        Vec filter[NV];
        RG_UNROLL
        for (int v = 0; v < NV; ++v) filter[v] = load(w + v * kWidth);
        RG_UNROLL
        for (int i = 0; i < MR; ++i) {
            RG_UNROLL
            for (int v = 0; v < NV; ++v)
                acc[i][v] += (i < kPixels ? pixel[i % kPixels][j] : pixel[i % kPixels][far + j]) * filter[v];
        }
    }
}

/// Computes dw[i][k] += sum over rows and pixels of image[pixel][i] * dy[pixel][k], for MR taps and NV vectors.
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
#pragma GCC unroll 1
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

template <int NV, int MR = kTaps>
WgradTile wgrad_tile_of(int64_t taps) {
    if constexpr (MR > 1)
        if (taps < MR) return wgrad_tile_of<NV, MR - 1>(taps);
    return wgrad_tile<MR, NV>;
}

} // namespace

} // namespace rg::cpu::RG_ISA
