// Sums vectors that lie in the memories of several GPUs, which can read and write each other's memory.
#include "core/device.h"
#include "gpu/kernels.h"
#include "gpu/values.cuh"

namespace rg::RG_GPU {

namespace {

struct Vectors {
    float *from[Device::kMostVectors], *to[Device::kMostVectors];
    int sources, targets;
};

/// Each thread sums 4 values, so that it loads 16 bytes of each vector at once. All vectors are aligned to 16 bytes.
__global__ void __launch_bounds__(kSumThreads) sum_vectors_kernel(int64_t count, Vectors v) {
    const int64_t i = (int64_t(blockIdx.x) * kSumThreads + threadIdx.x) * 4;
    if (i + 4 <= count) {
        float sum[4], next[4];
        load_4(v.from[0] + i, sum);
        RG_UNROLL_4
        for (int s = 1; s < v.sources; ++s) {
            load_4(v.from[s] + i, next);
            RG_UNROLL
            for (int j = 0; j < 4; ++j) sum[j] += next[j];
        }
        for (int t = 0; t < v.targets; ++t)
            *reinterpret_cast<float4*>(v.to[t] + i) = float4{sum[0], sum[1], sum[2], sum[3]};
    } else {
        for (int64_t j = i; j < count; ++j) {
            float sum = v.from[0][j];
            for (int s = 1; s < v.sources; ++s) sum += v.from[s][j];
            for (int t = 0; t < v.targets; ++t) v.to[t][j] = sum;
        }
    }
}

} // namespace

void sum_vectors(std::span<std::byte* const> from, std::span<std::byte* const> to, size_t count, cudaStream_t stream) {
    Vectors v{{}, {}, int(from.size()), int(to.size())};
    for (const auto& [vectors, pointers] : {std::pair(from, v.from), {to, v.to}}) {
        RG_CHECK(vectors.size() <= Device::kMostVectors, "sum: expected at most ", Device::kMostVectors,
                 " vectors, got ", vectors.size());
        for (size_t i = 0; i < vectors.size(); ++i) {
            RG_CHECK(reinterpret_cast<uintptr_t>(vectors[i]) % 16 == 0,
                     "sum: expected vectors that are aligned to 16 bytes");
            pointers[i] = reinterpret_cast<float*>(vectors[i]);
        }
    }
    if (count == 0) return;
    const auto blocks = unsigned((count + 4 * kSumThreads - 1) / (4 * kSumThreads));
    RG_LAUNCH(sum_vectors_kernel, blocks, kSumThreads, 0, stream, int64_t(count), v);
}

} // namespace rg::RG_GPU
