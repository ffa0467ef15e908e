// Batch norm: batch statistics, its gradient, running averages, and the normalisation where no other kernel applies it.
#include "core/context.h"
#include "gpu/kernels.h"
#include "gpu/norm.cuh"
#include "gpu/transfer.h"

namespace rg::RG_GPU {

namespace {

constexpr int kThreads = 256;

/// Computes the coefficients of class Norm: scale and shift, and with `sums` also b and d of the gradient.
__global__ void batch_norm_coefficients_kernel(const float* stats, const float* gamma, const float* beta, int c,
                                               float epsilon, const float* sums, double count, float* out) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= c) return;
    const double sigma = sqrt(double(stats[c + i]) + double(epsilon)), scale = double(gamma[i]) / sigma;
    out[i] = float(scale);
    out[c + i] = float(double(beta[i]) - double(stats[i]) * double(out[i]));
    if (!sums) return;
    const double b = -scale / sigma * double(sums[i]) / count;
    out[2 * c + i] = float(b);
    out[3 * c + i] = float(-scale * double(sums[c + i]) / count - b * double(stats[i]));
}

/// Stores y[i] = reader.value(i, channel). The reader determines the op: normalisation, its gradient, or a sum.
template <class T, class Reader>
__global__ void __launch_bounds__(kThreads) batch_norm_apply_kernel(int64_t count, int c, Reader reader, T* y) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i < count) store(y + i, reader.value(size_t(i), int(i % c)));
}

template <class T, class Reader>
void apply(const Reader& reader, const Tensor& y) {
    const int64_t count = y.numel();
    if (count > 0)
        RG_LAUNCH((batch_norm_apply_kernel<T, Reader>), blocks_for(count, kThreads), kThreads, 0, stream(), count,
                  int(y.extent(y.shape().rank() - 1)), reader, pointer<T>(y));
}

/// Reads the sum of two readers, then applies ReLU if `relu`.
template <class ReaderA, class ReaderB>
struct Sum {
    ReaderA a;
    ReaderB b;
    bool relu;
    __device__ float value(size_t i, int channel) const {
        const float sum = a.value(i, channel) + b.value(i, channel);
        return relu ? relu_of(sum) : sum;
    }
};

/// Calls f with a reader of in[0]. The reader normalises with in[1], in[2], in[3] if they are defined.
template <class T, class F>
void with_reader(std::span<const Tensor> in, float epsilon, F f) {
    if (!in[1].defined()) return f(Plain<T>{pointer<T>(in[0])});
    const Norm norm(in[1], in[2], in[3], epsilon);
    f(norm.read<T>(in[0], false));
}

/// Sums deviations from the first row, and their squares. Sums of the values themselves lose precision far from 0.
template <class T>
struct Deviations {
    const T* x;
    int c;
    __device__ void operator()(int64_t row, int column, TwoSums& sum) const {
        const float d = load(x + row * c + column) - load(x + column);
        sum.first += d;
        sum.second += d * d;
    }
};
template <class T>
struct FinishMoments {
    const T* x;
    int64_t rows;
    int c;
    float* stats;
    __device__ void operator()(int column, double sum, double squares) const {
        store_moments(stats, c, column, rows, rows > 0 ? double(load(x + column)) : 0, sum, squares);
    }
};

template <class T>
struct NormGradientTerms {
    const T* dy;
    NormTerms<T> terms;
    int c;
    __device__ void operator()(int64_t row, int column, TwoSums& sum) const {
        const size_t index = size_t(row) * c + column;
        terms.add(load(dy + index), index, column, sum);
    }
};

/// Concatenates two vectors of c values.
__global__ void batch_norm_concatenate_kernel(const float* first, const float* second, int c, float* out) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < c) out[i] = first[i], out[c + i] = second[i];
}

/// `unbias` converts the batch variance into the unbiased one.
__global__ void batch_norm_running_update_kernel(const float* running, const float* stats, int c, double momentum,
                                                 double unbias, float* out) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= 2 * c) return;
    const double target = double(stats[i]) * (i >= c ? unbias : 1);
    out[i] = float((1 - momentum) * double(running[i]) + momentum * target);
}

} // namespace

Norm::Norm(const Tensor& stats, const Tensor& gamma, const Tensor& beta, float epsilon, const Tensor& sums,
           double count)
    : c_(int(gamma.numel())), coefficients_((sums.defined() ? 4 : 2) * size_t(c_)) {
    RG_LAUNCH(batch_norm_coefficients_kernel, blocks_for(c_, 64), 64, 0, stream(), pointer<float>(stats),
              pointer<float>(gamma), pointer<float>(beta), c_, epsilon, pointer<float>(sums), count, coefficients_);
}

void NormSums::compute() const {
    const int c = norm_.channels();
    with_stored(dy_, [&](auto t) {
        using T = decltype(t);
        sum_columns(dy_.numel() / c, c, NormGradientTerms<T>{pointer<T>(dy_), terms<T>(), c}, finish_);
    });
}

void channel_stats(const Call& call) {
    const Tensor& x = call.in[0];
    const int c = int(x.extent(3));
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        const int64_t rows = x.numel() / c;
        sum_columns(rows, c, Deviations<T>{pointer<T>(x), c},
                    FinishMoments<T>{pointer<T>(x), rows, c, pointer<float>(call.out[0])});
    });
}

void batch_norm(const Call& call) {
    const Norm norm(call.in[1], call.in[2], call.in[3], call.attrs.epsilon);
    with_stored(call.in[0], [&](auto t) {
        using T = decltype(t);
        apply<T>(norm.read<T>(call.in[0], call.attrs.relu), call.out[0]);
    });
}

void batch_norm_sums(const Call& call) {
    const Norm norm(call.in[2], call.in[3], call.in[4], call.attrs.epsilon);
    NormSums(norm, call.in[0], call.in[1], call.in[2], call.attrs.relu, call.attrs.epsilon, call.out[0], call.out[1])
        .compute();
}

void batch_norm_grad(const Call& call) {
    const Tensor &dy = call.in[0], &x = call.in[1];
    const Norm norm(call.in[2], call.in[3], call.in[4], call.attrs.epsilon, call.in[5],
                    double(x.numel() / call.in[3].numel()));
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        apply<T>(norm.gradient<T>(dy, x, call.attrs.relu), call.out[0]);
    });
}

void norm_add(const Call& call) {
    with_stored(call.in[0], [&](auto t) {
        using T = decltype(t);
        with_reader<T>(call.in.first(4), call.attrs.epsilon, [&](const auto& a) {
            with_reader<T>(call.in.subspan(4), call.attrs.epsilon, [&](const auto& b) {
                using Both = Sum<std::decay_t<decltype(a)>, std::decay_t<decltype(b)>>;
                apply<T>(Both{a, b, call.attrs.relu}, call.out[0]);
            });
        });
    });
}

void norm_add_grad(const Call& call) {
    relu_grad({call.attrs, call.in.first(2), call.out.first(1)});
    for (size_t i : {size_t(0), size_t(1)}) {
        const auto x = call.in.subspan(2 + 4 * i, 4);
        if (!x[0].defined()) continue;
        const Norm norm(x[1], x[2], x[3], call.attrs.epsilon);
        NormSums(norm, call.out[0], x[0], x[1], false, call.attrs.epsilon, call.out[1 + 2 * i], call.out[2 + 2 * i])
            .compute();
    }
}

// Ranks that share statistics exchange these few hundred values on the host. A rank without a group uses its own
// values.
void rank_stats(const Call& call) {
    if (context().sync) return on_host(Op::rank_stats, call);
    const float* const stats = pointer<float>(call.in[0]);
    const int c = int(call.in[0].extent(1));
    RG_LAUNCH(batch_norm_concatenate_kernel, blocks_for(c, 64), 64, 0, stream(), stats, stats + c, c,
              pointer<float>(call.out[0]));
}
void rank_sums(const Call& call) {
    if (context().sync) return on_host(Op::rank_sums, call);
    const int c = int(call.in[0].numel());
    RG_LAUNCH(batch_norm_concatenate_kernel, blocks_for(c, 64), 64, 0, stream(), pointer<float>(call.in[0]),
              pointer<float>(call.in[1]), c, pointer<float>(call.out[0]));
}

void running_update(const Call& call) {
    const SyncGroup* group = context().sync;
    const double count = double((group ? group->samples : call.attrs.height) * call.attrs.width);
    const int c = int(call.in[0].extent(1));
    RG_LAUNCH(batch_norm_running_update_kernel, blocks_for(2 * c, 64), 64, 0, stream(), pointer<float>(call.in[0]),
              pointer<float>(call.in[1]), c, double(call.attrs.rate), count > 1 ? count / (count - 1) : 1.0,
              pointer<float>(call.out[0]));
}

} // namespace rg::RG_GPU
