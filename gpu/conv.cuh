// What the kernels of conv.cu and conv_hopper.cu share: extents, what is done with a result, statistics from parts.
#pragma once

#include "gpu/scratch.cuh"
#include "gpu/values.cuh"

namespace rg::RG_GPU {

/// The extents as the product sees them: `in` is read, `out` is made.
struct Geometry {
    int images, in_h, in_w, in_c, out_h, out_w, out_c, r, s, stride, pad;
    __host__ __device__ int64_t pixels() const { return int64_t(images) * out_h * out_w; }
    __host__ __device__ int taps() const { return r * s * in_c; }
};

struct Epilogue {
    const float* bias;   // null: none
    const float* factor; // of the filters, by output channel; null: none
    bool relu;
    float* moments; // [parts of the pixels][2][out_c]: mean, squared deviations; null: not wanted
};

/// stats [2 c] from moments [parts][2][c]: each thread merges every 32nd part, in order, then pairs of threads.
/// pixels(part): how many values of a channel it has.
template <class Pixels>
__global__ void merge_moments(const float* moments, int parts, Pixels pixels, int c, float* stats) {
    const int channel = int(blockIdx.x), lane = int(threadIdx.x);
    double count = 0, mean = 0, squares = 0;
    const auto merge = [&](double n, double m, double q) {
        if (n == 0) return;
        const double all = count + n, d = m - mean;
        mean += d * n / all;
        squares += q + d * d * count * n / all;
        count = all;
    };
    for (int part = lane; part < parts; part += 32) {
        const float* const at = moments + size_t(part) * 2 * c;
        merge(pixels(part), double(at[channel]), double(at[c + channel]));
    }
    for (int step = 16; step > 0; step /= 2) {
        const double n = __shfl_down_sync(0xffffffffu, count, step), m = __shfl_down_sync(0xffffffffu, mean, step),
                     q = __shfl_down_sync(0xffffffffu, squares, step);
        if (lane < step) merge(n, m, q);
    }
    if (lane == 0) {
        stats[channel] = float(mean);
        stats[c + channel] = count > 0 ? float(squares / count) : 0;
    }
}

/// Of conv_hopper.cu: whether it has done this, which else is for the portable kernel. stats: where the batch
/// statistics of the result go, or undefined.
template <class Read>
bool convolve_on_hopper(const Geometry& g, bool gradient, const Read& read, const float* w, Epilogue e, bf16* out,
                        const Tensor& stats);

} // namespace rg::RG_GPU
