// Linear layers with few results in f32, and their gradients, by plain multiply-adds. The last layer of a network is
// often such a layer. In f32, the tiles of the convolution kernels have 32 filters, so that most of their products
// would be wasted. The order of all sums is fixed.
#include "gpu/conv.cuh"
#include "gpu/conv_choice.cuh"
#include "gpu/divisor.cuh"

namespace rg::RG_GPU {

namespace {

constexpr int kThreads = 256, kWarps = 32, kMaxResults = kMaxLinearResults;

/// The extents of x [rows][c], w [k][c] and y [rows][k].
struct Extents {
    int rows, c, k;
};

/// Computes y = x w^T + bias. A warp computes a row.
__global__ void __launch_bounds__(kThreads)
    linear_forward_kernel(Extents e, const float* __restrict__ x, const float* __restrict__ w, const float* bias,
                          float* __restrict__ y) {
    const int row = int(blockIdx.x) * (kThreads / 32) + int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
    if (row >= e.rows) return;
    float sum[kMaxResults] = {};
    for (int j = lane; j < e.c; j += 32) {
        const float value = x[size_t(row) * e.c + j];
        RG_UNROLL
        for (int i = 0; i < kMaxResults; ++i)
            if (i < e.k) sum[i] += value * w[i * e.c + j];
    }
    RG_UNROLL
    for (int i = 0; i < kMaxResults; ++i) {
        if (i >= e.k) break;
        const float total = warp_sum(sum[i]);
        if (lane == i) y[size_t(row) * e.k + i] = total + (bias ? bias[i] : 0);
    }
}

/// Computes dx = dy w. A thread computes a value.
__global__ void __launch_bounds__(kThreads) linear_dgrad_kernel(Extents e, Divisor c, const float* __restrict__ dy,
                                                                const float* __restrict__ w, float* __restrict__ dx) {
    const int i = int(blockIdx.x) * kThreads + int(threadIdx.x);
    if (i >= e.rows * e.c) return;
    const int row = i / c, column = i % c;
    float sum = 0;
    for (int j = 0; j < e.k; ++j) sum += dy[size_t(row) * e.k + j] * w[j * e.c + column];
    dx[i] = sum;
}

/// Computes dw = dy^T x. The bias gradient is treated as column c of dw, for which x is 1. A block computes 32 columns.
/// Its warps share the rows, and at the end add their sums.
__global__ void __launch_bounds__(32 * kWarps)
    linear_wgrad_kernel(Extents e, const float* __restrict__ dy, const float* __restrict__ x, float* __restrict__ dw,
                        float* __restrict__ dbias) {
    constexpr int kRows = 8 * kWarps; // rows of dy in shared memory, 8 for each warp
    SHARED(float, gradients, kRows* kMaxResults);
    SHARED(float, sums, kWarps * 33); // the padding puts the sums of a column into different banks
    const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int first_column = int(blockIdx.x) * 32, column = first_column + lane;
    float sum[kMaxResults] = {};
    for (int first = 0; first < e.rows; first += kRows) {
        __syncthreads(); // all warps have read the previous rows
        for (int i = thread; i < kRows * kMaxResults; i += 32 * kWarps) {
            const int row = first + i / kMaxResults, result = i % kMaxResults;
            gradients[i] = row < e.rows && result < e.k ? dy[size_t(row) * e.k + result] : 0;
        }
        float values[8];
        RG_UNROLL
        for (int j = 0; j < 8; ++j) {
            const int row = min(first + 8 * warp + j, e.rows - 1); // values beyond do not matter: their dy is 0
            values[j] = column < e.c ? x[size_t(row) * e.c + column] : 1;
        }
        __syncthreads();
        RG_UNROLL
        for (int j = 0; j < 8; ++j) {
            RG_UNROLL
            for (int i = 0; i < kMaxResults; i += 4) {
                float four[4];
                load_4(gradients + (8 * warp + j) * kMaxResults + i, four);
                RG_UNROLL
                for (int n = 0; n < 4; ++n) sum[i + n] += four[n] * values[j];
            }
        }
    }
    RG_UNROLL
    for (int i = 0; i < kMaxResults; ++i) {
        if (i >= e.k) break;
        __syncthreads(); // all warps have read the previous sums
        sums[warp * 33 + lane] = sum[i];
        __syncthreads();
        const float total = warp_sum(sums[lane * 33 + warp]);
        const int of_warp = first_column + warp;
        if (lane == 0 && of_warp < e.c) dw[i * e.c + of_warp] = total;
        if (lane == 0 && of_warp == e.c) dbias[i] = total;
    }
}

} // namespace

void linear_forward(const Call& call) {
    using O = Conv2dOp;
    const Tensor &x = call.in[O::x], &w = call.in[O::w];
    const Extents e{int(x.numel() / w.extent(3)), int(w.extent(3)), int(w.extent(0))};
    RG_LAUNCH(linear_forward_kernel, blocks_for(e.rows, kThreads / 32), kThreads, 0, stream(), e, pointer<float>(x),
              pointer<float>(w), pointer<float>(call.in[O::bias]), pointer<float>(call.out[O::y]));
}

void linear_grad(const Call& call) {
    using O = Conv2dGradOp;
    const auto& a = call.attrs.as<O>();
    const Tensor &dy = call.in[O::dy], &w = call.in[O::w];
    const Extents e{int(dy.numel() / w.extent(0)), int(w.extent(3)), int(w.extent(0))};
    if (a.filters)
        RG_LAUNCH(linear_wgrad_kernel, blocks_for(e.c + 1, 32), 32 * kWarps, 0, stream(), e, pointer<float>(dy),
                  pointer<float>(call.in[O::x]), pointer<float>(call.out[O::dw]), pointer<float>(call.out[O::dbias]));
    if (a.data)
        RG_LAUNCH(linear_dgrad_kernel, blocks_for(int64_t(e.rows) * e.c, kThreads), kThreads, 0, stream(), e,
                  Divisor(e.c), pointer<float>(dy), pointer<float>(w), pointer<float>(call.out[O::dx]));
}

} // namespace rg::RG_GPU
