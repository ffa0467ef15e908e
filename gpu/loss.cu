// Softmax, cross-entropy, binary cross-entropy and squared error, with their gradients. With at most 32 classes, a
// thread computes a row of softmax. So one block can compute a whole mini-batch of up to 1024 samples and its loss.
// With more classes, a warp computes a row. If the rows need several blocks, a second kernel sums the loss. The order
// of all sums is fixed.
#include "gpu/elementwise.cuh"
#include "gpu/kernels.h"
#include "gpu/reduce.cuh"

#include <algorithm>

namespace rg::RG_GPU {

namespace {

constexpr int kRows = kThreads / 32, kLossThreads = 1024;

/// Returns weight * value, and 0 for a weight of 0, whatever the value: a logit may be infinite.
__device__ __forceinline__ float weighted(float weight, float value) { return weight == 0 ? 0 : weight * value; }

/// Returns the target probability of a class. Label smoothing gives smoothing / k to each of the k classes, and the
/// remaining 1 - smoothing to the class of the label.
__device__ __forceinline__ float target_probability(int class_, int label, float smoothing, int k) {
    return (class_ == label ? 1 - smoothing : 0) + smoothing / float(k);
}

/// Weights of the classes and of the samples in cross-entropy. Without them, of_class and of_samples are null.
struct Weights {
    const float* of_class = nullptr;
    const float* sums = nullptr; // if of_class is not null: [0]: sum of the weights of all samples' labels; [1]: sum of
                                 // the k class weights
    const float* of_samples = nullptr;
    __device__ float of(int class_) const { return of_class ? of_class[class_] : 1; }
    __device__ float of_sample(int64_t row) const { return of_samples ? of_samples[row] : 1; }
    /// Returns the sum of weight * target probability over all k classes, for a sample with this label. Returns NaN if
    /// the label is out of range.
    __device__ float target_sum(int label, float smoothing, int k) const {
        if (label < 0 || label >= k) return NAN;
        return of_class ? of_class[label] * (1 - smoothing) + smoothing / float(k) * sums[1] : 1;
    }
    /// Returns a pointer to the divisor of the mean loss, or null if it is the number of samples: without class
    /// weights, or with sample weights.
    __host__ __device__ const float* total() const { return of_class && !of_samples ? sums : nullptr; }
    __device__ float total(int64_t rows) const { return total() ? *total() : float(rows); }
};

/// Computes Weights::sums. If a label is out of range, the first sum is NaN. Runs as a single block.
__global__ void __launch_bounds__(kThreads)
    class_weight_sums_kernel(int64_t rows, int k, const int* labels, const float* weights, float* sums) {
    double of_labels = 0, of_classes = 0;
    for (int64_t i = threadIdx.x; i < rows; i += kThreads)
        of_labels += double(labels[i] >= 0 && labels[i] < k ? weights[labels[i]] : NAN);
    for (int j = int(threadIdx.x); j < k; j += kThreads) of_classes += double(weights[j]);
    of_labels = block_sum(of_labels);
    of_classes = block_sum(of_classes);
    if (threadIdx.x == 0) sums[0] = float(of_labels), sums[1] = float(of_classes);
}

struct CrossEntropy {
    const int* labels = nullptr;
    float smoothing = 0;
    Weights weights = {};
    const float* dloss = nullptr; // if set, p receives the gradient with respect to the logits, not the softmax
    float* loss = nullptr;        // receives the mean loss; null to compute only softmax
    float* losses = nullptr;      // [rows], receives each sample's loss if there are several blocks; otherwise null
};

/// Computes p = softmax of each row, or the gradient if c.dloss is set, which requires c.loss. Each row has `lanes`
/// neighbouring lanes. If c.loss is set, also computes the mean loss, or only each sample's loss if c.losses is set. If
/// the label of a sample is out of range, its loss and its gradient are NaN.
__global__ void __launch_bounds__(kLossThreads)
    softmax_cross_entropy_kernel(int64_t rows, int k, int lanes, const float* x, float* p, CrossEntropy c) {
    const int64_t row = (int64_t(blockIdx.x) * kLossThreads + threadIdx.x) / lanes;
    const int lane = int(threadIdx.x) % lanes, end = row < rows ? k : 0; // a row beyond the last has no classes
    const float* const logits = x + row * k;
    float top = -INFINITY;
    int has_nan = 0; // 1 if a logit is NaN, which fmaxf ignores
    for (int j = lane; j < end; j += lanes) top = max(top, logits[j]), has_nan |= logits[j] != logits[j];
    top = warp_max(top, lanes);
    if (warp_max(has_nan, lanes)) top = NAN;
    float sum = 0;
    for (int j = lane; j < end; j += lanes) sum += expf(logits[j] - top);
    sum = warp_sum(sum, lanes);
    const int label = c.loss && end > 0 ? c.labels[row] : 0;
    const float log_sum = logf(sum), scale = c.dloss ? *c.dloss / c.weights.total(rows) : 0;
    const float of_sample = end > 0 ? c.weights.of_sample(row) : 0;
    const float target_sum = c.weights.target_sum(label, c.smoothing, k) * of_sample;
    float loss = label >= 0 && label < k ? 0 : NAN;
    for (int j = lane; j < end; j += lanes) {
        const float probability = expf(logits[j] - top) / sum,
                    target = c.weights.of(j) * target_probability(j, label, c.smoothing, k) * of_sample;
        loss -= weighted(target, logits[j] - top - log_sum);
        p[row * k + j] = c.dloss ? scale * (probability * target_sum - target) : probability;
    }
    if (!c.loss) return;
    loss = warp_sum(loss, lanes);
    const bool has_row = lane == 0 && row < rows;
    if (c.losses) {
        if (has_row) c.losses[row] = loss;
        return;
    }
    const double total = block_sum(has_row ? double(loss) : 0.0);
    if (threadIdx.x == 0) *c.loss = rows > 0 ? float(total / double(c.weights.total(rows))) : 0;
}

/// Stores to *out the sum of f(i) over all i < count, divided by *total, or by count if `total` is null. Stores 0 if
/// count is 0. `sums` and `arrivals` are as for grid_sum().
template <class F>
__global__ void __launch_bounds__(kThreads)
    loss_mean_kernel(int64_t count, F f, const float* total, double* sums, unsigned* arrivals, float* out) {
    double sum = 0;
    for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < count; i += int64_t(gridDim.x) * kThreads)
        sum += double(f(i));
    if (grid_sum(sum, sums, arrivals, sum) && threadIdx.x == 0)
        *out = count > 0 ? float(sum / (total ? double(*total) : double(count))) : 0;
}

template <class F>
void loss_mean(int64_t count, const F& f, const float* total, float* out) {
    constexpr int64_t kPerThread = 16, kMostBlocks = 1024;
    const auto blocks = unsigned(std::clamp<int64_t>(blocks_for(count, kPerThread * kThreads), 1, kMostBlocks));
    const DeviceScratch<double> sums(blocks);
    RG_LAUNCH(loss_mean_kernel<F>, blocks, kThreads, 0, stream(), count, f, total, sums, arrival_counters(), out);
}

struct SampleLoss {
    const float* x;
    __device__ float operator()(int64_t i) const { return x[i]; }
};
struct SquaredDifference {
    const float *a, *b;
    __device__ float operator()(int64_t i) const { return (a[i] - b[i]) * (a[i] - b[i]); }
};
/// Returns the loss of one logit, or NaN if its target lies outside [0, 1].
struct BinaryCrossEntropy {
    const float *logits, *targets;
    __device__ float operator()(int64_t i) const {
        const float x = logits[i], t = targets[i];
        if (!(t >= 0 && t <= 1)) return NAN;
        return weighted(x < 0 ? t : 1 - t, fabsf(x)) + log1pf(expf(-fabsf(x)));
    }
};

__global__ void __launch_bounds__(kThreads)
    softmax_grad_kernel(int64_t rows, int k, const float* dy, const float* y, float* dx) {
    const int64_t row = int64_t(blockIdx.x) * kRows + threadIdx.x / 32; // of this warp
    const int lane = int(threadIdx.x) % 32;
    if (row >= rows) return;
    float dot = 0;
    for (int j = lane; j < k; j += 32) dot += dy[row * k + j] * y[row * k + j];
    dot = warp_sum(dot);
    for (int j = lane; j < k; j += 32) dx[row * k + j] = y[row * k + j] * (dy[row * k + j] - dot);
}

struct CrossEntropyGrad {
    int64_t rows;
    int k;
    const float* p;
    const int* labels;
    const float* dloss;
    float smoothing;
    Weights weights;
    float* dx;
    __device__ void operator()(int64_t i) const {
        const int class_ = int(i % k), label = labels[i / k];
        const float scale = *dloss / weights.total(rows) * weights.of_sample(i / k);
        dx[i] = scale * (p[i] * weights.target_sum(label, smoothing, k) -
                         weights.of(class_) * target_probability(class_, label, smoothing, k));
    }
};

struct BinaryCrossEntropyGrad {
    int64_t count;
    const float *logits, *targets, *dloss;
    float* dx;
    __device__ void operator()(int64_t i) const {
        const float e = expf(-fabsf(logits[i])), p = (logits[i] < 0 ? e : 1) / (1 + e), t = targets[i];
        dx[i] = t >= 0 && t <= 1 ? *dloss / float(count) * (p - t) : NAN;
    }
};

struct MseLossGrad {
    int64_t count;
    const float *a, *b, *dloss;
    float* dx;
    __device__ void operator()(int64_t i) const { dx[i] = 2 * *dloss / float(count) * (a[i] - b[i]); }
};

/// Computes softmax and, if c.loss is set, the loss. If c.dloss is set, p receives the gradient instead of softmax.
void run_softmax(const Tensor& x, const Tensor& p, CrossEntropy c = {}) {
    const int64_t rows = x.extent(0), k = x.extent(1);
    const int lanes = k <= 32 ? 1 : 32;
    const unsigned blocks = std::max(1u, blocks_for(rows * lanes, kLossThreads));
    const DeviceScratch<float> losses(c.loss && blocks > 1 ? size_t(rows) : 0);
    if (blocks > 1) c.losses = losses;
    RG_LAUNCH(softmax_cross_entropy_kernel, blocks, kLossThreads, 0, stream(), rows, int(k), lanes, pointer<float>(x),
              pointer<float>(p), c);
    if (c.loss && blocks > 1) loss_mean(rows, SampleLoss{losses}, c.weights.total(), c.loss);
}

/// Computes Weights::sums if there are class weights.
DeviceScratch<float> sum_class_weights(const Tensor& weights, const Tensor& labels) {
    DeviceScratch<float> sums(2);
    if (weights.defined())
        RG_LAUNCH(class_weight_sums_kernel, 1, kThreads, 0, stream(), labels.numel(), int(weights.numel()),
                  pointer<int>(labels), pointer<float>(weights), sums);
    return sums;
}

} // namespace

void softmax(const Call& call) { run_softmax(call.in[SoftmaxOp::x], call.out[0]); }

void softmax_grad(const Call& call) {
    const Tensor& y = call.in[SoftmaxGradOp::y];
    if (y.extent(0) > 0)
        RG_LAUNCH(softmax_grad_kernel, blocks_for(y.extent(0), kRows), kThreads, 0, stream(), y.extent(0),
                  int(y.extent(1)), pointer<float>(call.in[SoftmaxGradOp::dy]), pointer<float>(y),
                  pointer<float>(call.out[0]));
}

void cross_entropy(const Call& call) {
    using O = CrossEntropyOp;
    const Tensor& dloss = call.in[O::dloss];
    const DeviceScratch<float> sums = sum_class_weights(call.in[O::weights], call.in[O::labels]);
    const Weights weights{pointer<float>(call.in[O::weights]), sums, pointer<float>(call.in[O::sample_weights])};
    run_softmax(call.in[O::logits], dloss.defined() ? call.out[O::dlogits] : call.out[O::probabilities],
                {.labels = pointer<int>(call.in[O::labels]),
                 .smoothing = call.attrs.as<O>().smoothing,
                 .weights = weights,
                 .dloss = pointer<float>(dloss),
                 .loss = pointer<float>(call.out[O::loss])});
}

void cross_entropy_grad(const Call& call) {
    using O = CrossEntropyGradOp;
    const Tensor& p = call.in[O::probabilities];
    const DeviceScratch<float> sums = sum_class_weights(call.in[O::weights], call.in[O::labels]);
    const Weights weights{pointer<float>(call.in[O::weights]), sums, pointer<float>(call.in[O::sample_weights])};
    elementwise(p.numel(), CrossEntropyGrad{p.extent(0), int(p.extent(1)), pointer<float>(p),
                                            pointer<int>(call.in[O::labels]), pointer<float>(call.in[O::dloss]),
                                            call.attrs.as<O>().smoothing, weights, pointer<float>(call.out[0])});
}

void binary_cross_entropy(const Call& call) {
    using O = BinaryCrossEntropyOp;
    const Tensor& logits = call.in[O::logits];
    loss_mean(logits.numel(), BinaryCrossEntropy{pointer<float>(logits), pointer<float>(call.in[O::targets])}, nullptr,
              pointer<float>(call.out[0]));
}

void binary_cross_entropy_grad(const Call& call) {
    using O = BinaryCrossEntropyGradOp;
    const int64_t count = call.out[0].numel();
    elementwise(count,
                BinaryCrossEntropyGrad{count, pointer<float>(call.in[O::logits]), pointer<float>(call.in[O::targets]),
                                       pointer<float>(call.in[O::dloss]), pointer<float>(call.out[0])});
}

void mse_loss(const Call& call) {
    const Tensor &prediction = call.in[MseLossOp::prediction], &target = call.in[MseLossOp::target];
    loss_mean(prediction.numel(), SquaredDifference{pointer<float>(prediction), pointer<float>(target)}, nullptr,
              pointer<float>(call.out[0]));
}

void mse_loss_grad(const Call& call) {
    using O = MseLossGradOp;
    const int64_t count = call.out[0].numel();
    elementwise(count, MseLossGrad{count, pointer<float>(call.in[O::prediction]), pointer<float>(call.in[O::target]),
                                   pointer<float>(call.in[O::dloss]), pointer<float>(call.out[0])});
}

} // namespace rg::RG_GPU
