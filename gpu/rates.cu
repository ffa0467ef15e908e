// A kernel with which Device::rates() measures the peak rate of a GPU's tensor cores. It multiplies bf16 values in
// registers, without loads. Each warp has eight independent sums in flight. On Hopper GPUs, wgmma would reach a higher
// rate.
#include "gpu/kernels.h"
#include "gpu/mma.cuh"
#include "gpu/scratch.cuh"

namespace rg::RG_GPU {

namespace {

constexpr int kSums = 8;
constexpr uint32_t kOnes = 0x3f803f80; // two bf16 values of 1

/// Stores each thread's total of its sums to out [blocks * kMultiplyThreads].
__global__ void __launch_bounds__(kMultiplyThreads) mma_peak_rate_kernel(float* out, int rounds) {
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
    RG_LAUNCH(mma_peak_rate_kernel, unsigned(blocks), kMultiplyThreads, 0, stream(), out, rounds);
    return double(blocks) * (kMultiplyThreads / 32) * rounds * kSums * 2 * 16 * 8 * 16;
}

} // namespace rg::RG_GPU
