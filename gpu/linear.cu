// Linear layers with few results in f32, and their gradients, by plain multiply-adds. The last layer of a network is
// often such a layer. In f32, the tiles of the convolution kernels have 32 filters, so that most of their products
// would be wasted. The order of all sums is fixed.
#include "gpu/conv.cuh"
#include "gpu/divisor.cuh"

namespace rg::RG_GPU {

namespace {

constexpr int kThreads = 256, kWarps = 32, kMaxResults = 16;
/// The most rows (samples, or pixels of a 1 x 1 convolution) that these kernels take. Each block of the weight gradient
/// goes through all rows, so more of them would take long.
constexpr int64_t kMaxRows = 8192;

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

/// Returns the extents if the kernels cover the case. Otherwise, `rows` is 0.
Extents extents_of(int64_t rows, const Tensor& w, const Conv& conv) {
    const int64_t c = w.extent(3), k = w.extent(0);
    const bool covered = w.dtype() == DType::f32 && w.extent(1) == 1 && w.extent(2) == 1 && conv.groups == 1 &&
                         Axes(conv.stride) == Axes(1) && Axes(conv.pad) == Axes(0) && k <= kMaxResults &&
                         rows <= kMaxRows && rows * c < INT32_MAX - kThreads;
    return {covered ? int(rows) : 0, int(c), int(k)};
}

} // namespace

bool linear_forward(const Call& call) {
    using O = Conv2dOp;
    const auto& a = call.attrs.as<O>();
    const Tensor &x = call.in[O::x], &w = call.in[O::w];
    const Extents e = extents_of(x.numel() / w.extent(3), w, a.conv);
    if (e.rows == 0 || x.dtype() != DType::f32 || a.with_stats || a.x_norm.given(call.in) || a.y_norm.given(call.in))
        return false;
    RG_LAUNCH(linear_forward_kernel, blocks_for(e.rows, kThreads / 32), kThreads, 0, stream(), e, pointer<float>(x),
              pointer<float>(w), pointer<float>(call.in[O::bias]), pointer<float>(call.out[O::y]));
    return true;
}

bool linear_grad(const Call& call) {
    using O = Conv2dGradOp;
    const auto& a = call.attrs.as<O>();
    const Tensor &dy = call.in[O::dy], &w = call.in[O::w];
    const Extents e = extents_of(dy.numel() / w.extent(0), w, a.conv);
    if (e.rows == 0 || dy.dtype() != DType::f32 || call.in[O::y].defined() || call.in[O::addend].defined())
        return false;
    if (a.filters)
        RG_LAUNCH(linear_wgrad_kernel, blocks_for(e.c + 1, 32), 32 * kWarps, 0, stream(), e, pointer<float>(dy),
                  pointer<float>(call.in[O::x]), pointer<float>(call.out[O::dw]), pointer<float>(call.out[O::dbias]));
    if (a.data)
        RG_LAUNCH(linear_dgrad_kernel, blocks_for(int64_t(e.rows) * e.c, kThreads), kThreads, 0, stream(), e,
                  Divisor(e.c), pointer<float>(dy), pointer<float>(w), pointer<float>(call.out[O::dx]));
    return true;
}

} // namespace rg::RG_GPU
