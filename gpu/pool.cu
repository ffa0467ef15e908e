// Max and average pooling and their gradients, also fused with batch norm before pooling.
//
// A thread computes one value. For gradients, it computes one value of dx and visits all windows that contain it, so
// that overlapping windows need no atomics.
#include "gpu/kernels.h"
#include "gpu/norm.cuh"

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

/// Max pooling. `positions` receives the index of the maximum within its window; null if not needed. The first of equal
/// values wins. NaN wins over all values, so that a diverged network remains visible.
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
    __device__ float operator()(uint32_t pixel, int c) const { // fewer than 2^32 pixels, since 64-bit division is slow
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

/// A term for sum_columns(): computes and stores a value of dx, and adds its terms of batch norm's sums.
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

/// Computes dx. Also computes `sums` of dx if not null.
void run_pool_grad(const Tensor& dy, const Tensor& positions, const Attrs& a, float weight, const Tensor& dx,
                   const NormSums* sums = nullptr) {
    const Windows g(dx.shape(), dy.shape(), a.window, a.stride);
    with_stored(dy, [&](auto t) {
        using T = decltype(t);
        const PoolGrad<T> value{g, pointer<T>(dy), pointer<uint8_t>(positions), weight};
        if (sums)
            sum_columns(dx.numel() / g.c, g.c, PoolGradTerms<T>{value, sums->terms<T>(), pointer<T>(dx)},
                        sums->finish());
        else if (dx.numel() > 0)
            RG_LAUNCH(pool2d_grad_kernel<T>, blocks_for(dx.numel(), kThreads), kThreads, 0, stream(), dx.numel(), value,
                      pointer<T>(dx));
    });
}

float mean_weight(const Attrs& a) { return 1 / float(a.window * a.window); }

template <class T, class Reader>
void run_avg_pool(const Tensor& x, const Attrs& a, const Reader& reader, const Tensor& y) {
    if (y.numel() > 0)
        RG_LAUNCH((avg_pool2d_forward_kernel<T, Reader>), blocks_for(y.numel(), kThreads), kThreads, 0, stream(),
                  Windows(x.shape(), y.shape(), a.window, a.stride), y.numel(), mean_weight(a), reader, pointer<T>(y));
}

} // namespace

template <class T>
void max_pool(const T* x, const Shape& s, int window, T* y) {
    const Shape to{s[0], (s[1] - window) / window + 1, (s[2] - window) / window + 1, s[3]};
    run_max_pool(Windows(s, to, window, window), to.numel(), Plain<T>{x}, y, nullptr);
}
template void max_pool(const float*, const Shape&, int, float*);
template void max_pool(const bf16*, const Shape&, int, bf16*);

void max_pool2d(const Call& call) {
    const Tensor &x = call.in[0], &y = call.out[0];
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        run_max_pool(Windows(x.shape(), y.shape(), call.attrs.window, call.attrs.stride), y.numel(),
                     Plain<T>{pointer<T>(x)}, pointer<T>(y), pointer<uint8_t>(call.out[1]));
    });
}

void norm_max_pool2d(const Call& call) {
    const Tensor &x = call.in[0], &y = call.out[0];
    const Norm norm(call.in[1], call.in[2], call.in[3], call.attrs.epsilon);
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        run_max_pool(Windows(x.shape(), y.shape(), call.attrs.window, call.attrs.stride), y.numel(),
                     norm.read<T>(x, call.attrs.relu), pointer<T>(y), pointer<uint8_t>(call.out[1]));
    });
}

void max_pool2d_grad(const Call& call) { run_pool_grad(call.in[0], call.in[1], call.attrs, 1, call.out[0]); }

void norm_avg_pool2d(const Call& call) {
    const Tensor& x = call.in[0];
    const Norm norm(call.in[1], call.in[2], call.in[3], call.attrs.epsilon);
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        run_avg_pool<T>(x, call.attrs, norm.read<T>(x, call.attrs.relu), call.out[0]);
    });
}

void norm_pool2d_grad(const Call& call) {
    const Tensor &x = call.in[2], &dx = call.out[0];
    const Norm norm(call.in[3], call.in[4], call.in[5], call.attrs.epsilon);
    const NormSums sums(norm, dx, x, call.in[3], call.attrs.relu, call.attrs.epsilon, call.out[1], call.out[2]);
    run_pool_grad(call.in[0], call.in[1], call.attrs, call.in[1].defined() ? 1 : mean_weight(call.attrs), dx, &sums);
}

void avg_pool2d(const Call& call) {
    const Tensor& x = call.in[0];
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        run_avg_pool<T>(x, call.attrs, Plain<T>{pointer<T>(x)}, call.out[0]);
    });
}

void avg_pool2d_grad(const Call& call) {
    run_pool_grad(call.in[0], {}, call.attrs, mean_weight(call.attrs), call.out[0]);
}

} // namespace rg::RG_GPU
