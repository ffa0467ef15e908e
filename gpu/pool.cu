// Max and average pooling and their gradients, also with batch norm on the way in.
//
// A thread makes one value. In the gradients it makes one value of dx and looks up the windows that hold it, so that
// windows which overlap need no atomic sum.
#include "gpu/kernels.h"
#include "gpu/norm.cuh"

namespace rg::RG_GPU {

namespace {

constexpr int kThreads = 256;

struct Windows {
    int h, w, c, p, q, window, stride; // of the input, of the result
    Windows(const Shape& x, const Shape& y, int64_t window, int64_t stride)
        : h(int(x[1])),
          w(int(x[2])),
          c(int(x[3])),
          p(int(y[1])),
          q(int(y[2])),
          window(int(window)),
          stride(int(stride)) {}
};

/// positions: where the largest was in its window; null: not wanted. The first of equal values wins, and a NaN over
/// all, so that what a diverged network computes is seen.
template <class T, class Read>
__global__ void __launch_bounds__(kThreads)
    pool_largest(Windows g, int64_t count, Read read, T* y, uint8_t* positions) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= count) return;
    const int c = int(i % g.c), column = int(i / g.c % g.q), row = int(i / g.c / g.q % g.p);
    const int64_t image = i / g.c / g.q / g.p;
    float best = 0;
    int at = -1;
    for (int r = 0; r < g.window; ++r)
        for (int s = 0; s < g.window; ++s) {
            const size_t from =
                ((size_t(image) * g.h + row * g.stride + r) * g.w + column * g.stride + s) * g.c + size_t(c);
            const float v = read.value(from, c);
            if (at < 0 || v > best || (v != v && best == best)) best = v, at = r * g.window + s;
        }
    store(y + i, best);
    if (positions) positions[i] = uint8_t(at);
}

/// dx of one value: the sum over the windows that hold it of `share` times dy, or, with positions, of dy where the
/// value was the largest.
template <class T>
struct Spread {
    Windows g;
    const T* dy;
    const uint8_t* positions;
    float share;
    __device__ float operator()(uint32_t pixel, int c) const { // of fewer than 2^32: long divisions cost
        const uint32_t image = pixel / uint32_t(g.h * g.w);
        const int in_image = int(pixel % uint32_t(g.h * g.w)), row = in_image / g.w, column = in_image % g.w;
        float sum = 0;
        for (int i = min(row / g.stride, g.p - 1); i >= 0 && row - i * g.stride < g.window; --i)
            for (int j = min(column / g.stride, g.q - 1); j >= 0 && column - j * g.stride < g.window; --j) {
                const int place = (row - i * g.stride) * g.window + column - j * g.stride;
                const size_t from = ((size_t(image) * g.p + i) * g.q + j) * g.c + size_t(c);
                if (!positions || positions[from] == place) sum += share * load(dy + from);
            }
        return sum;
    }
};

template <class T>
__global__ void __launch_bounds__(kThreads) spread(int64_t count, Spread<T> value, T* dx) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i < count) store(dx + i, value(uint32_t(i / value.g.c), int(i % value.g.c)));
}

/// The same while the sums of what is stored are taken.
template <class T>
struct SpreadTerms {
    Spread<T> value;
    NormTerms<T> terms;
    T* dx;
    __device__ void operator()(int64_t pixel, int c, TwoSums& sum) const {
        const size_t at = size_t(pixel) * value.g.c + c;
        const float v = value(uint32_t(pixel), c);
        store(dx + at, v);
        terms.add(as_stored(v, T{}), at, c, sum);
    }
};

template <class T, class Read>
__global__ void __launch_bounds__(kThreads) pool_mean(Windows g, int64_t count, float share, Read read, T* y) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= count) return;
    const int c = int(i % g.c), column = int(i / g.c % g.q), row = int(i / g.c / g.q % g.p);
    const int64_t image = i / g.c / g.q / g.p;
    float sum = 0;
    for (int r = 0; r < g.window; ++r)
        for (int s = 0; s < g.window; ++s)
            sum += read.value(
                ((size_t(image) * g.h + row * g.stride + r) * g.w + column * g.stride + s) * g.c + size_t(c), c);
    store(y + i, share * sum);
}

template <class T, class Read>
void largest(const Windows& g, int64_t count, const Read& read, T* y, uint8_t* positions) {
    if (count > 0)
        RG_LAUNCH((pool_largest<T, Read>), blocks_for(count, kThreads), kThreads, 0, stream(), g, count, read, y,
                  positions);
}

/// sums: those of dx that are wanted, or null.
void gradient(const Tensor& dy, const Tensor& positions, const Attrs& a, float share, const Tensor& dx,
              const NormSums* sums = nullptr) {
    const Windows g(dx.shape(), dy.shape(), a.window, a.stride);
    with_stored(dy, [&](auto t) {
        using T = decltype(t);
        const Spread<T> value{g, pointer<T>(dy), pointer<uint8_t>(positions), share};
        if (sums)
            sum_columns(dx.numel() / g.c, g.c, SpreadTerms<T>{value, sums->terms<T>(), pointer<T>(dx)}, sums->finish());
        else if (dx.numel() > 0)
            RG_LAUNCH(spread<T>, blocks_for(dx.numel(), kThreads), kThreads, 0, stream(), dx.numel(), value,
                      pointer<T>(dx));
    });
}

float share_of(const Attrs& a) { return 1 / float(a.window * a.window); }

template <class T, class Read>
void mean(const Tensor& x, const Attrs& a, const Read& read, const Tensor& y) {
    if (y.numel() > 0)
        RG_LAUNCH((pool_mean<T, Read>), blocks_for(y.numel(), kThreads), kThreads, 0, stream(),
                  Windows(x.shape(), y.shape(), a.window, a.stride), y.numel(), share_of(a), read, pointer<T>(y));
}

} // namespace

template <class T>
void max_pool(const T* x, const Shape& s, int window, T* y) {
    const Shape to{s[0], (s[1] - window) / window + 1, (s[2] - window) / window + 1, s[3]};
    largest(Windows(s, to, window, window), to.numel(), Plain<T>{x}, y, nullptr);
}
template void max_pool(const float*, const Shape&, int, float*);
template void max_pool(const bf16*, const Shape&, int, bf16*);

void max_pool2d(const Call& call) {
    const Tensor &x = call.in[0], &y = call.out[0];
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        largest(Windows(x.shape(), y.shape(), call.attrs.window, call.attrs.stride), y.numel(), Plain<T>{pointer<T>(x)},
                pointer<T>(y), pointer<uint8_t>(call.out[1]));
    });
}

void norm_max_pool2d(const Call& call) {
    const Tensor &x = call.in[0], &y = call.out[0];
    const Norm norm(call.in[1], call.in[2], call.in[3], call.attrs.epsilon);
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        largest(Windows(x.shape(), y.shape(), call.attrs.window, call.attrs.stride), y.numel(),
                norm.read<T>(x, call.attrs.relu), pointer<T>(y), pointer<uint8_t>(call.out[1]));
    });
}

void max_pool2d_grad(const Call& call) { gradient(call.in[0], call.in[1], call.attrs, 1, call.out[0]); }

void norm_avg_pool2d(const Call& call) {
    const Tensor& x = call.in[0];
    const Norm norm(call.in[1], call.in[2], call.in[3], call.attrs.epsilon);
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        mean<T>(x, call.attrs, norm.read<T>(x, call.attrs.relu), call.out[0]);
    });
}

void norm_pool2d_grad(const Call& call) {
    const Tensor &x = call.in[2], &dx = call.out[0];
    const Norm norm(call.in[3], call.in[4], call.in[5], call.attrs.epsilon);
    const NormSums sums(norm, dx, x, call.in[3], call.attrs.relu, call.attrs.epsilon, call.out[1], call.out[2]);
    gradient(call.in[0], call.in[1], call.attrs, call.in[1].defined() ? 1 : share_of(call.attrs), dx, &sums);
}

void avg_pool2d(const Call& call) {
    const Tensor& x = call.in[0];
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        mean<T>(x, call.attrs, Plain<T>{pointer<T>(x)}, call.out[0]);
    });
}

void avg_pool2d_grad(const Call& call) { gradient(call.in[0], {}, call.attrs, share_of(call.attrs), call.out[0]); }

} // namespace rg::RG_GPU
