// Max and average pooling, image by image, alone or fused with batch norm. Channels are contiguous, so each window
// consists of a few whole vectors.
#include "ringgrad/core/cpu/norm.h"
#include "ringgrad/core/ops/pool.h"

namespace rg::cpu {

namespace {

/// Holds the extents of the input x, of the result y and of the windows.
struct Windows {
    Windows(const Shape& x, const Shape& y, const Pool& pool)
        : images(x[0]), h(x[1]), w(x[2]), c(x[3]), p(y[1]), q(y[2]), window(pool.window), stride(pool.stride) {}
    int64_t images, h, w, c, p, q, window, stride;
    int64_t values_per_image() const { return h * w * c; } // in an image of the input
    int64_t x_at(int64_t n, int64_t i, int64_t j) const { return ((n * h + i * stride) * w + j * stride) * c; }
    int64_t y_at(int64_t n, int64_t i, int64_t j) const { return ((n * p + i) * q + j) * c; }

    /// Calls f(offset in x, offset in y) for every window of image n.
    template <class F>
    void each(int64_t n, F f) const {
        for (int64_t i = 0; i < p; ++i)
            for (int64_t j = 0; j < q; ++j) f(x_at(n, i, j), y_at(n, i, j));
    }
};

/// Calls f(n, t) for every image in parallel, where t has the type that x is stored as.
template <class F>
void each_stored_image(const Windows& win, const Tensor& x, F f) {
    with_stored(x, [&](auto t) { each_image(win.images, [&](int64_t n) { f(n, t); }); });
}

/// Computes image n of the gradient of max pooling: adds dy at `positions`, and leaves all other values zero.
template <class T>
void max_pool_grad_image(const Windows& win, int64_t n, const T* dy, const uint8_t* positions, T* dx) {
    std::fill_n(dx + n * win.values_per_image(), win.values_per_image(), T{});
    win.each(n, [&](int64_t to, int64_t from) {
        kernels<T>().max_window_grad(dy + from, positions + from, win.w * win.c, win.window, win.c, dx + to);
    });
}

/// Computes image n of the gradient of average pooling.
template <class T>
void avg_pool_grad_image(const Windows& win, int64_t n, const T* dy, T* dx) {
    const float scale = 1 / float(win.window * win.window);
    std::fill_n(dx + n * win.values_per_image(), win.values_per_image(), T{});
    win.each(n, [&](int64_t to, int64_t from) {
        kernels<T>().sum_window_grad(dy + from, win.w * win.c, win.window, win.c, scale, dx + to);
    });
}

/// Pools each window of x with pool(win, start of the window, offset in y). With a norm, first normalises the image
/// into scratch memory, so that it is pooled while it is in cache.
template <class PoolWindow>
void pool_images(const Call& call, PoolWindow pool) {
    using O = Pool2dOp;
    const auto& attrs = call.attrs.as<O>();
    const Tensor& x = call.in[O::x];
    const Windows win(x.shape(), call.out[0].shape(), attrs.pool);
    std::optional<Norm> norm;
    make_norm(norm, call.in.subspan(O::x_stats), attrs.x_norm);
    each_stored_image(win, x, [&](int64_t n, auto t) {
        using T = decltype(t);
        const T* image = stored<T>(x) + n * win.values_per_image();
        const Scratch<T> normalised(norm ? win.values_per_image() : 0);
        if (norm) {
            norm->apply(image, normalised.data(), win.values_per_image());
            image = normalised;
        }
        win.each(n, [&](int64_t from, int64_t to) { pool(win, image + (from - n * win.values_per_image()), to); });
    });
}

/// Computes each image n of a gradient with grad(win, n, t). If the input of the pooling is defined, also computes the
/// gradient's sums for the input's batch norm.
template <class GradImage>
void pool_gradient(const Call& call, GradImage grad) {
    using O = Pool2dGradOp;
    const auto& attrs = call.attrs.as<O>();
    const Tensor &dy = call.in[O::dy], &x = call.in[O::x], &dx = call.out[O::dx];
    const Windows win(dx.shape(), dy.shape(), attrs.pool);
    std::optional<Norm> norm;
    std::optional<NormSums> sums;
    make_norm(norm, call.in.subspan(O::x_stats, 3), attrs.x_norm);
    if (norm) sums.emplace(*norm, win.images);
    each_stored_image(win, dy, [&](int64_t n, auto t) {
        using T = decltype(t);
        grad(win, n, t);
        const int64_t values = win.values_per_image();
        if (sums) sums->add(n, stored<T>(dx) + n * values, stored<T>(x) + n * values, values);
    });
    if (sums) sums->finish(call.out[O::x_dgamma], call.out[O::x_dbeta]);
}

} // namespace

void max_pool2d(const Call& call) {
    using O = Pool2dOp;
    uint8_t* const positions = call.out[O::positions].data<uint8_t>();
    pool_images(call, [&]<class T>(const Windows& win, const T* x, int64_t to) {
        kernels<T>().max_window(x, win.w * win.c, win.window, win.c, stored<T>(call.out[O::y]) + to, positions + to);
    });
}

void max_pool2d_grad(const Call& call) {
    using O = Pool2dGradOp;
    pool_gradient(call, [&]<class T>(const Windows& win, int64_t n, T) {
        max_pool_grad_image(win, n, stored<T>(call.in[O::dy]), call.in[O::positions].data<uint8_t>(),
                            stored<T>(call.out[O::dx]));
    });
}

void avg_pool2d(const Call& call) {
    pool_images(call, [&]<class T>(const Windows& win, const T* x, int64_t to) {
        const float scale = 1 / float(win.window * win.window);
        kernels<T>().sum_window(x, win.w * win.c, win.window, win.c, scale, stored<T>(call.out[0]) + to);
    });
}

void avg_pool2d_grad(const Call& call) {
    using O = Pool2dGradOp;
    pool_gradient(call, [&]<class T>(const Windows& win, int64_t n, T) {
        avg_pool_grad_image(win, n, stored<T>(call.in[O::dy]), stored<T>(call.out[O::dx]));
    });
}

} // namespace rg::cpu
