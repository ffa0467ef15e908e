// What a GPU multiplies at most, to measure kernels against: products of bf16 by its tensor cores out of registers,
// with nothing to load, eight sums at a time under way in every warp. wgmma, which Hopper GPUs have besides, does more.
#include "gpu/kernels.h"
#include "gpu/mma.cuh"
#include "gpu/scratch.cuh"

namespace rg::RG_GPU {

namespace {

constexpr int kSums = 8;
constexpr uint32_t kOnes = 0x3f803f80; // two of bf16

/// out [blocks * kMultiplyThreads]: of each thread, the total of its sums.
__global__ void __launch_bounds__(kMultiplyThreads) multiply_kernel(float* out, int rounds) {
    const uint32_t a[4] = {kOnes, kOnes, kOnes, kOnes}, b[2] = {kOnes, kOnes};
    float sums[kSums][4] = {};
    for (int round = 0; round < rounds; ++round) {
        RG_UNROLL
        for (int i = 0; i < kSums; ++i) mma_bf16_16x8x16(sums[i], a, b);
    }
    float total = 0;
    RG_UNROLL
    for (int i = 0; i < kSums; ++i)
        for (int j = 0; j < 4; ++j) total += sums[i][j];
    out[blockIdx.x * kMultiplyThreads + threadIdx.x] = total;
}

} // namespace

double multiply(float* out, int blocks, int rounds) {
    RG_LAUNCH(multiply_kernel, unsigned(blocks), kMultiplyThreads, 0, stream(), out, rounds);
    return double(blocks) * (kMultiplyThreads / 32) * rounds * kSums * 2 * 16 * 8 * 16;
}

} // namespace rg::RG_GPU
