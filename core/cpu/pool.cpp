// Max and average pooling, image by image, alone or fused with batch norm. Channels are contiguous, so each window
// consists of a few whole vectors.
#include "core/cpu/norm.h"
#include "core/kernels.h"

namespace rg::cpu {

namespace {

/// Extents of the input, of the result and of the windows.
struct Windows {
    Windows(const Shape& x, const Shape& y, const Attrs& a)
        : images(x[0]), h(x[1]), w(x[2]), c(x[3]), p(y[1]), q(y[2]), window(a.window), stride(a.stride) {}
    int64_t images, h, w, c, p, q, window, stride;
    int64_t image_values() const { return h * w * c; } // in an image of the input
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
    std::fill_n(dx + n * win.image_values(), win.image_values(), T{});
    win.each(n, [&](int64_t to, int64_t from) {
        kernels<T>().max_window_grad(dy + from, positions + from, win.w * win.c, win.window, win.c, dx + to);
    });
}

/// Computes image n of the gradient of average pooling.
template <class T>
void avg_pool_grad_image(const Windows& win, int64_t n, const T* dy, T* dx) {
    const float scale = 1 / float(win.window * win.window);
    std::fill_n(dx + n * win.image_values(), win.image_values(), T{});
    win.each(n, [&](int64_t to, int64_t from) {
        kernels<T>().sum_window_grad(dy + from, win.w * win.c, win.window, win.c, scale, dx + to);
    });
}

} // namespace

void max_pool2d(const Call& call) {
    const Windows win(call.in[0].shape(), call.out[0].shape(), call.attrs);
    uint8_t* positions = call.out[1].data<uint8_t>();
    each_stored_image(win, call.in[0], [&](int64_t n, auto t) {
        using T = decltype(t);
        win.each(n, [&](int64_t from, int64_t to) {
            kernels<T>().max_window(stored<T>(call.in[0]) + from, win.w * win.c, win.window, win.c,
                                    stored<T>(call.out[0]) + to, positions + to);
        });
    });
}

void max_pool2d_grad(const Call& call) {
    const Windows win(call.out[0].shape(), call.in[0].shape(), call.attrs);
    each_stored_image(win, call.in[0], [&](int64_t n, auto t) {
        using T = decltype(t);
        max_pool_grad_image(win, n, stored<T>(call.in[0]), call.in[1].data<uint8_t>(), stored<T>(call.out[0]));
    });
}

// Normalises each image into scratch memory, and pools it while it is in cache.
void norm_max_pool2d(const Call& call) {
    const Windows win(call.in[0].shape(), call.out[0].shape(), call.attrs);
    const Norm norm(call.in[1], call.in[2], call.in[3], call.attrs.epsilon, call.attrs.relu);
    uint8_t* positions = call.out[1].data<uint8_t>();
    each_stored_image(win, call.in[0], [&](int64_t n, auto t) {
        using T = decltype(t);
        const Scratch<T> image(win.image_values());
        norm.apply(stored<T>(call.in[0]) + n * win.image_values(), image.data(), win.image_values());
        win.each(n, [&](int64_t from, int64_t to) {
            kernels<T>().max_window(image + (from - n * win.image_values()), win.w * win.c, win.window, win.c,
                                    stored<T>(call.out[0]) + to, positions + to);
        });
    });
}

void norm_avg_pool2d(const Call& call) {
    const Windows win(call.in[0].shape(), call.out[0].shape(), call.attrs);
    const Norm norm(call.in[1], call.in[2], call.in[3], call.attrs.epsilon, call.attrs.relu);
    const float scale = 1 / float(win.window * win.window);
    each_stored_image(win, call.in[0], [&](int64_t n, auto t) {
        using T = decltype(t);
        const Scratch<T> image(win.image_values());
        norm.apply(stored<T>(call.in[0]) + n * win.image_values(), image.data(), win.image_values());
        win.each(n, [&](int64_t from, int64_t to) {
            kernels<T>().sum_window(image + (from - n * win.image_values()), win.w * win.c, win.window, win.c, scale,
                                    stored<T>(call.out[0]) + to);
        });
    });
}

void norm_pool2d_grad(const Call& call) {
    const Tensor &dy = call.in[0], &x = call.in[2], &dx = call.out[0];
    const Windows win(x.shape(), dy.shape(), call.attrs);
    const Norm norm(call.in[3], call.in[4], call.in[5], call.attrs.epsilon, call.attrs.relu);
    NormSums sums(norm, win.images);
    each_stored_image(win, x, [&](int64_t n, auto t) {
        using T = decltype(t);
        if (call.in[1].defined())
            max_pool_grad_image(win, n, stored<T>(dy), call.in[1].data<uint8_t>(), stored<T>(dx));
        else
            avg_pool_grad_image(win, n, stored<T>(dy), stored<T>(dx));
        sums.add(n, stored<T>(dx) + n * win.image_values(), stored<T>(x) + n * win.image_values(), win.image_values());
    });
    sums.finish(call.out[1], call.out[2]);
}

void avg_pool2d(const Call& call) {
    const Windows win(call.in[0].shape(), call.out[0].shape(), call.attrs);
    const float scale = 1 / float(win.window * win.window);
    each_stored_image(win, call.in[0], [&](int64_t n, auto t) {
        using T = decltype(t);
        win.each(n, [&](int64_t from, int64_t to) {
            kernels<T>().sum_window(stored<T>(call.in[0]) + from, win.w * win.c, win.window, win.c, scale,
                                    stored<T>(call.out[0]) + to);
        });
    });
}

void avg_pool2d_grad(const Call& call) {
    const Windows win(call.out[0].shape(), call.in[0].shape(), call.attrs);
    each_stored_image(win, call.in[0], [&](int64_t n, auto t) {
        using T = decltype(t);
        avg_pool_grad_image(win, n, stored<T>(call.in[0]), stored<T>(call.out[0]));
    });
}

} // namespace rg::cpu
