// Softmax, cross-entropy and squared error, with their gradients. A warp takes a row; the loss is summed by one block,
// in a fixed order.
#include "gpu/kernels.h"
#include "gpu/reduce.cuh"
#include "gpu/scratch.cuh"
#include "gpu/values.cuh"

namespace rg::RG_GPU {

namespace {

constexpr int kThreads = 256, kRows = kThreads / 32;

/// The row of this warp, and its lane.
struct Row {
    int64_t row = int64_t(blockIdx.x) * kRows + threadIdx.x / 32;
    int lane = int(threadIdx.x) % 32;
};

/// The label's share of the target is 1 - smoothing, and smoothing is spread over all k classes.
__device__ __forceinline__ float target(int class_, int label, float smoothing, int k) {
    return (class_ == label ? 1 - smoothing : 0) + smoothing / float(k);
}

/// p = softmax of each row; losses (with labels) [rows]: of each sample. A label that is no class makes its loss NaN.
__global__ void __launch_bounds__(kThreads)
    softmax_rows(int64_t rows, int k, const float* x, float* p, const int* labels, float smoothing, float* losses) {
    const Row at;
    if (at.row >= rows) return;
    const float* const from = x + at.row * k;
    float top = -INFINITY;
    bool has_nan = false; // fmaxf passes over it
    for (int j = at.lane; j < k; j += 32) top = max(top, from[j]), has_nan |= from[j] != from[j];
    top = warp_max(top);
    if (__any_sync(0xffffffffu, has_nan)) top = NAN;
    float sum = 0;
    for (int j = at.lane; j < k; j += 32) sum += expf(from[j] - top);
    sum = warp_sum(sum);
    for (int j = at.lane; j < k; j += 32) p[at.row * k + j] = expf(from[j] - top) / sum;
    if (!labels) return;
    const int label = labels[at.row];
    const float log_sum = logf(sum);
    float loss = 0;
    for (int j = at.lane; j < k; j += 32) loss -= target(j, label, smoothing, k) * (from[j] - top - log_sum);
    loss = warp_sum(loss);
    if (at.lane == 0) losses[at.row] = label >= 0 && label < k ? loss : NAN;
}

/// out = the mean of f over `count` values, by one block.
template <class F>
__global__ void __launch_bounds__(kThreads) mean_of(int64_t count, F f, float* out) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += double(f(i));
    sum = block_sum(sum);
    if (threadIdx.x == 0) *out = count > 0 ? float(sum / double(count)) : 0;
}

struct Value {
    const float* x;
    __device__ float operator()(int64_t i) const { return x[i]; }
};
struct SquaredDifference {
    const float *a, *b;
    __device__ float operator()(int64_t i) const { return (a[i] - b[i]) * (a[i] - b[i]); }
};

__global__ void __launch_bounds__(kThreads)
    softmax_rows_grad(int64_t rows, int k, const float* dy, const float* y, float* dx) {
    const Row at;
    if (at.row >= rows) return;
    float dot = 0;
    for (int j = at.lane; j < k; j += 32) dot += dy[at.row * k + j] * y[at.row * k + j];
    dot = warp_sum(dot);
    for (int j = at.lane; j < k; j += 32) dx[at.row * k + j] = y[at.row * k + j] * (dy[at.row * k + j] - dot);
}

__global__ void __launch_bounds__(kThreads)
    cross_entropy_rows_grad(int64_t count, int k, const float* p, const int* labels, const float* dloss,
                            float smoothing, float* dx) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= count) return;
    const float scale = *dloss / float(count / k);
    dx[i] = scale * (p[i] - target(int(i % k), labels[i / k], smoothing, k));
}

__global__ void __launch_bounds__(kThreads)
    squared_error_grad(int64_t count, const float* a, const float* b, const float* dloss, float* dx) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i < count) dx[i] = 2 * *dloss / float(count) * (a[i] - b[i]);
}

void softmax_all(const Tensor& x, const Tensor& p, const int* labels, float smoothing, float* losses) {
    if (x.extent(0) > 0)
        RG_LAUNCH(softmax_rows, blocks_for(x.extent(0), kRows), kThreads, 0, stream(), x.extent(0), int(x.extent(1)),
                  pointer<float>(x), pointer<float>(p), labels, smoothing, losses);
}

} // namespace

void softmax(const Call& call) { softmax_all(call.in[0], call.out[0], nullptr, 0, nullptr); }

void softmax_grad(const Call& call) {
    const Tensor& y = call.in[1];
    if (y.extent(0) > 0)
        RG_LAUNCH(softmax_rows_grad, blocks_for(y.extent(0), kRows), kThreads, 0, stream(), y.extent(0),
                  int(y.extent(1)), pointer<float>(call.in[0]), pointer<float>(y), pointer<float>(call.out[0]));
}

void cross_entropy(const Call& call) {
    const Tensor& x = call.in[0];
    const Scratch<float> losses(size_t(x.extent(0)));
    softmax_all(x, call.out[1], pointer<int>(call.in[1]), call.attrs.rate, losses);
    RG_LAUNCH(mean_of<Value>, 1, kThreads, 0, stream(), x.extent(0), Value{losses}, pointer<float>(call.out[0]));
}

void cross_entropy_grad(const Call& call) {
    const Tensor& p = call.in[0];
    if (p.numel() > 0)
        RG_LAUNCH(cross_entropy_rows_grad, blocks_for(p.numel(), kThreads), kThreads, 0, stream(), p.numel(),
                  int(p.extent(1)), pointer<float>(p), pointer<int>(call.in[1]), pointer<float>(call.in[2]),
                  call.attrs.rate, pointer<float>(call.out[0]));
}

void mse_loss(const Call& call) {
    RG_LAUNCH(mean_of<SquaredDifference>, 1, kThreads, 0, stream(), call.in[0].numel(),
              SquaredDifference{pointer<float>(call.in[0]), pointer<float>(call.in[1])}, pointer<float>(call.out[0]));
}

void mse_loss_grad(const Call& call) {
    const int64_t count = call.in[0].numel();
    if (count > 0)
        RG_LAUNCH(squared_error_grad, blocks_for(count, kThreads), kThreads, 0, stream(), count,
                  pointer<float>(call.in[0]), pointer<float>(call.in[1]), pointer<float>(call.in[2]),
                  pointer<float>(call.out[0]));
}

} // namespace rg::RG_GPU
