// Max and average pooling and their gradients. Each op can include the batch norm of its input.
//
// Each value of a result is computed by one thread. For a value of dx, that thread visits all windows that contain the
// value, so that overlapping windows need no atomics.
#include "ringgrad/gpu/kernels.h"
#include "ringgrad/gpu/norm.cuh"

namespace rg::RG_GPU {

namespace {

constexpr int kThreads = 256;

struct Windows {
    int h, w, c, p, q, window, stride; // the input is h x w x c, the result p x q x c
    Windows(const Shape& x, const Shape& y, int64_t window, int64_t stride)
        : h(int(x[1])),
          w(int(x[2])),
          c(int(x[3])),
          p(int(y[1])),
          q(int(y[2])),
          window(int(window)),
          stride(int(stride)) {}
};

/// Max pooling. `positions` receives the index of each maximum within its window; null if not needed. The first of
/// equal values wins. NaN wins over all values, so that a diverged network remains visible.
template <class T, class Reader>
__global__ void __launch_bounds__(kThreads)
    max_pool2d_forward_kernel(Windows g, int64_t count, Reader reader, T* y, uint8_t* positions) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= count) return;
    const int c = int(i % g.c), column = int(i / g.c % g.q), row = int(i / g.c / g.q % g.p);
    const int64_t image = i / g.c / g.q / g.p;
    float best = 0;
    int position = -1;
    for (int r = 0; r < g.window; ++r)
        for (int s = 0; s < g.window; ++s) {
            const size_t index =
                ((size_t(image) * g.h + row * g.stride + r) * g.w + column * g.stride + s) * g.c + size_t(c);
            const float v = reader.value(index, c);
            if (position < 0 || v > best || (v != v && best == best)) best = v, position = r * g.window + s;
        }
    store(y + i, best);
    if (positions) positions[i] = uint8_t(position);
}

/// Computes dx of one value as the sum of weight * dy over the windows that contain it. With positions, counts only the
/// windows in which the value was the maximum.
template <class T>
struct PoolGrad {
    Windows g;
    const T* dy;
    const uint8_t* positions;
    float weight;
    __device__ float operator()(uint32_t pixel, int c) const { // 32 bits, since 64-bit division is slow
        const uint32_t image = pixel / uint32_t(g.h * g.w);
        const int in_image = int(pixel % uint32_t(g.h * g.w)), row = in_image / g.w, column = in_image % g.w;
        float sum = 0;
        for (int i = min(row / g.stride, g.p - 1); i >= 0 && row - i * g.stride < g.window; --i)
            for (int j = min(column / g.stride, g.q - 1); j >= 0 && column - j * g.stride < g.window; --j) {
                const int position = (row - i * g.stride) * g.window + column - j * g.stride;
                const size_t index = ((size_t(image) * g.p + i) * g.q + j) * g.c + size_t(c);
                if (!positions || positions[index] == position) sum += weight * load(dy + index);
            }
        return sum;
    }
};

template <class T>
__global__ void __launch_bounds__(kThreads) pool2d_grad_kernel(int64_t count, PoolGrad<T> value, T* dx) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i < count) store(dx + i, value(uint32_t(i / value.g.c), int(i % value.g.c)));
}

/// A term for sum_columns(): computes and stores a value of dx, and adds its terms to batch norm's two sums.
template <class T>
struct PoolGradTerms {
    PoolGrad<T> value;
    NormTerms<T> terms;
    T* dx;
    __device__ void operator()(int64_t pixel, int c, TwoSums& sum) const {
        const size_t index = size_t(pixel) * value.g.c + c;
        const float v = value(uint32_t(pixel), c);
        store(dx + index, v);
        terms.add(as_stored(v, T{}), index, c, sum);
    }
};

template <class T, class Reader>
__global__ void __launch_bounds__(kThreads)
    avg_pool2d_forward_kernel(Windows g, int64_t count, float weight, Reader reader, T* y) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= count) return;
    const int c = int(i % g.c), column = int(i / g.c % g.q), row = int(i / g.c / g.q % g.p);
    const int64_t image = i / g.c / g.q / g.p;
    float sum = 0;
    for (int r = 0; r < g.window; ++r)
        for (int s = 0; s < g.window; ++s)
            sum += reader.value(
                ((size_t(image) * g.h + row * g.stride + r) * g.w + column * g.stride + s) * g.c + size_t(c), c);
    store(y + i, weight * sum);
}

template <class T, class Reader>
void run_max_pool(const Windows& g, int64_t count, const Reader& reader, T* y, uint8_t* positions) {
    if (count > 0)
        RG_LAUNCH((max_pool2d_forward_kernel<T, Reader>), blocks_for(count, kThreads), kThreads, 0, stream(), g, count,
                  reader, y, positions);
}

/// Computes dx. If x, the input of the pooling, is given, also computes batch norm's sums of dx.
void run_pool_grad(const Call& call, const Tensor& positions, float weight) {
    using O = Pool2dGradOp;
    const auto& a = call.attrs.as<O>();
    const Tensor &dy = call.in[O::dy], &x = call.in[O::x], &dx = call.out[O::dx];
    const Windows g(dx.shape(), dy.shape(), a.pool.window, a.pool.stride);
    with_stored(dy, [&](auto t) {
        using T = decltype(t);
        const PoolGrad<T> value{g, pointer<T>(dy), pointer<uint8_t>(positions), weight};
        if (x.defined()) {
            const Norm norm(call.in.subspan(O::x_stats, 3), a.x_norm);
            const NormSums sums(norm, dx, x, call.out[O::x_dgamma], call.out[O::x_dbeta]);
            sum_columns(dx.numel() / g.c, g.c, PoolGradTerms<T>{value, sums.terms<T>(), pointer<T>(dx)}, sums.finish());
        } else if (dx.numel() > 0) {
            RG_LAUNCH(pool2d_grad_kernel<T>, blocks_for(dx.numel(), kThreads), kThreads, 0, stream(), dx.numel(), value,
                      pointer<T>(dx));
        }
    });
}

float mean_weight(const Pool& pool) { return 1 / float(pool.window * pool.window); }

} // namespace

template <class T>
void max_pool(const T* x, const Shape& s, int window, T* y) {
    const Shape to{s[0], (s[1] - window) / window + 1, (s[2] - window) / window + 1, s[3]};
    run_max_pool(Windows(s, to, window, window), to.numel(), Plain<T>{x}, y, nullptr);
}
template void max_pool(const float*, const Shape&, int, float*);
template void max_pool(const bf16*, const Shape&, int, bf16*);

void max_pool2d(const Call& call) {
    using O = Pool2dOp;
    const auto& a = call.attrs.as<O>();
    const Tensor &x = call.in[O::x], &y = call.out[O::y];
    const Windows g(x.shape(), y.shape(), a.pool.window, a.pool.stride);
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        with_reader<T>(x, call.in.subspan(O::x_stats), a.x_norm, [&](const auto& reader) {
            run_max_pool(g, y.numel(), reader, pointer<T>(y), pointer<uint8_t>(call.out[O::positions]));
        });
    });
}

void max_pool2d_grad(const Call& call) { run_pool_grad(call, call.in[Pool2dGradOp::positions], 1); }

void avg_pool2d(const Call& call) {
    using O = Pool2dOp;
    const auto& a = call.attrs.as<O>();
    const Tensor &x = call.in[O::x], &y = call.out[0];
    const Windows g(x.shape(), y.shape(), a.pool.window, a.pool.stride);
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        with_reader<T>(x, call.in.subspan(O::x_stats), a.x_norm, [&]<class Reader>(const Reader& reader) {
            if (y.numel() > 0)
                RG_LAUNCH((avg_pool2d_forward_kernel<T, Reader>), blocks_for(y.numel(), kThreads), kThreads, 0,
                          stream(), g, y.numel(), mean_weight(a.pool), reader, pointer<T>(y));
        });
    });
}

void avg_pool2d_grad(const Call& call) { run_pool_grad(call, {}, mean_weight(call.attrs.as<Pool2dGradOp>().pool)); }

} // namespace rg::RG_GPU
