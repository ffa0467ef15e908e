// Max and average pooling, by output rows. Channels are contiguous, so each window is a few whole vectors.
#include "core/cpu/channels.h"
#include "core/kernels.h"

#include <cstring>

namespace rg::cpu {

namespace {

/// The input's extents and those of the windows.
struct Windows {
    Windows(const Shape& x, const Shape& y, const Attrs& a)
        : images(x[0]), h(x[1]), w(x[2]), c(x[3]), p(y[1]), q(y[2]), window(a.window), stride(a.stride) {}
    int64_t images, h, w, c, p, q, window, stride;
    int64_t x_at(int64_t n, int64_t i, int64_t j) const { return ((n * h + i * stride) * w + j * stride) * c; }
    int64_t y_at(int64_t n, int64_t i, int64_t j) const { return ((n * p + i) * q + j) * c; }

    /// f(offset in x, offset in y) for every window of image n.
    template <class F>
    void each(int64_t n, F f) const {
        for (int64_t i = 0; i < p; ++i)
            for (int64_t j = 0; j < q; ++j) f(x_at(n, i, j), y_at(n, i, j));
    }
};

} // namespace

void max_pool2d(const Call& call) {
    const Windows win(call.in[0].shape(), call.out[0].shape(), call.attrs);
    const float* x = call.in[0].data<float>();
    float* y = call.out[0].data<float>();
    uint8_t* at = call.out[1].data<uint8_t>();
    each_image(win.images, [&](int64_t n) {
        win.each(n, [&](int64_t from, int64_t to) {
            isa().elements->max_window(x + from, win.w * win.c, win.window, win.c, y + to, at + to);
        });
    });
}

void max_pool2d_grad(const Call& call) {
    const Windows win(call.out[0].shape(), call.in[0].shape(), call.attrs);
    const float* dy = call.in[0].data<float>();
    const uint8_t* at = call.in[1].data<uint8_t>();
    float* dx = call.out[0].data<float>();
    each_image(win.images, [&](int64_t n) {
        std::memset(dx + n * win.h * win.w * win.c, 0, size_t(win.h * win.w * win.c) * sizeof(float));
        win.each(n, [&](int64_t to, int64_t from) {
            isa().elements->max_window_grad(dy + from, at + from, win.w * win.c, win.window, win.c, dx + to);
        });
    });
}

void avg_pool2d(const Call& call) {
    const Windows win(call.in[0].shape(), call.out[0].shape(), call.attrs);
    const float* x = call.in[0].data<float>();
    float* y = call.out[0].data<float>();
    const float share = 1 / float(win.window * win.window);
    each_image(win.images, [&](int64_t n) {
        win.each(n, [&](int64_t from, int64_t to) {
            isa().elements->sum_window(x + from, win.w * win.c, win.window, win.c, share, y + to);
        });
    });
}

void avg_pool2d_grad(const Call& call) {
    const Windows win(call.out[0].shape(), call.in[0].shape(), call.attrs);
    const float* dy = call.in[0].data<float>();
    float* dx = call.out[0].data<float>();
    const float share = 1 / float(win.window * win.window);
    each_image(win.images, [&](int64_t n) {
        std::memset(dx + n * win.h * win.w * win.c, 0, size_t(win.h * win.w * win.c) * sizeof(float));
        win.each(n, [&](int64_t to, int64_t from) {
            isa().elements->sum_window_grad(dy + from, win.w * win.c, win.window, win.c, share, dx + to);
        });
    });
}

} // namespace rg::cpu
