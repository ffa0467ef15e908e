// Max and average pooling, image by image, alone or fused with batch norm. Channels are contiguous, so the kernels
// process several channels of a pixel as a vector.
#include "core/ops/pool.h"
#include "core/cpu/norm.h"

namespace rg::cpu {

namespace {

/// Describes the pooling of one image from an input of shape x to a result of shape y, for the kernels.
PoolImage windows_of(const Shape& x, const Shape& y, const Pool& pool) {
    return {{x[1], y[1], pool.window.h, pool.stride.h, pool.pad.h},
            {x[2], y[2], pool.window.w, pool.stride.w, pool.pad.w},
            x[3],
            pool.count_pad};
}

/// Return the number of values in an image of the input (x) and of the result (y).
int64_t x_values(const PoolImage& g) { return g.rows.extent * g.columns.extent * g.c; }
int64_t y_values(const PoolImage& g) { return g.rows.results * g.columns.results * g.c; }

/// Computes each row of the result with pool(g, row, image of x, index of the image's first value in the result). If
/// the op has a batch norm, first normalises the image into scratch memory, and pools it while it is in cache.
/// Otherwise several threads may share an image.
template <class PoolRow>
void pool_images(const Call& call, PoolRow pool) {
    using O = Pool2dOp;
    const auto& attrs = call.attrs.as<O>();
    const Tensor& x = call.in[O::x];
    const PoolImage g = windows_of(x.shape(), call.out[0].shape(), attrs.pool);
    const OptionalNorm norm(attrs.x_norm.given(call.in));
    const int64_t images = x.extent(0), rows = g.rows.results,
                  shares = norm ? 1 : shares_of(images, double(y_values(g) * g.rows.window * g.columns.window));
    with_stored(x, [&]<class T>(T) {
        parallel(images * shares, [&](int64_t task) {
            const int64_t n = task / shares;
            const Share share{task % shares, shares};
            const T* image = stored<T>(x) + n * x_values(g);
            const Scratch<T> normalised(norm ? x_values(g) : 0);
            if (norm) {
                norm->apply(image, normalised.data(), x_values(g));
                image = normalised;
            }
            for (int64_t row = share.begin(rows); row < share.end(rows); ++row) pool(g, row, image, n * y_values(g));
        });
    });
}

/// Computes each row of dx with grad(g, row, image of dy, number of the image, image of dx). If the op has a batch norm
/// of its input, also computes the gradients of gamma and beta from dx.
template <class GradRow>
void pool_gradient(const Call& call, GradRow grad) {
    using O = Pool2dGradOp;
    const auto& attrs = call.attrs.as<O>();
    const Tensor &dy = call.in[O::dy], &x = call.in[O::x], &dx = call.out[O::dx];
    const PoolImage g = windows_of(dx.shape(), dy.shape(), attrs.pool);
    const OptionalNorm norm(attrs.x_norm.given(call.in));
    std::optional<NormSums> sums;
    if (norm) sums.emplace(*norm, dx.extent(0));
    each_stored_image(dx, [&]<class T>(T, int64_t n, int64_t first) {
        T* const image = stored<T>(dx) + first;
        for (int64_t row = 0; row < g.rows.extent; ++row) grad(g, row, stored<T>(dy) + n * y_values(g), n, image);
        if (sums) sums->add(n, image, stored<T>(x) + first, x_values(g));
    });
    if (sums) sums->finish(call.out[O::x_dgamma], call.out[O::x_dbeta]);
}

} // namespace

void max_pool2d(const Call& call) {
    using O = Pool2dOp;
    uint8_t* const positions = call.out[O::positions].data<uint8_t>();
    pool_images(call, [&]<class T>(const PoolImage& g, int64_t row, const T* x, int64_t to) {
        kernels<T>().max_pool(g, row, x, stored<T>(call.out[O::y]) + to, positions + to);
    });
}

void max_pool2d_grad(const Call& call) {
    const uint8_t* const positions = call.in[Pool2dGradOp::positions].data<uint8_t>();
    pool_gradient(call, [&]<class T>(const PoolImage& g, int64_t row, const T* dy, int64_t n, T* dx) {
        kernels<T>().max_pool_grad(g, row, dy, positions + n * y_values(g), dx);
    });
}

void avg_pool2d(const Call& call) {
    pool_images(call, [&]<class T>(const PoolImage& g, int64_t row, const T* x, int64_t to) {
        kernels<T>().avg_pool(g, row, x, stored<T>(call.out[0]) + to);
    });
}

void avg_pool2d_grad(const Call& call) {
    pool_gradient(call, []<class T>(const PoolImage& g, int64_t row, const T* dy, int64_t, T* dx) {
        kernels<T>().avg_pool_grad(g, row, dy, dx);
    });
}

} // namespace rg::cpu
