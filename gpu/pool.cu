// Max and average pooling and their gradients. The forward ops can apply a batch norm to their input on load. The
// gradient ops can also compute the sums that the gradient of this batch norm needs.
//
// Each value of a result is computed by one thread. For a value of dx, that thread visits all windows that contain the
// value, so that overlapping windows need no atomics.
#include "ringgrad/gpu/kernels.h"
#include "ringgrad/gpu/norm.cuh"

namespace rg::RG_GPU {

namespace {

constexpr int kThreads = 256;

/// The windows along one axis of an image.
struct Axis {
    int extent, results, window, stride, pad;
    Axis(int64_t extent, int64_t results, int64_t window, int64_t stride, int64_t pad)
        : extent(int(extent)), results(int(results)), window(int(window)), stride(int(stride)), pad(int(pad)) {}
    /// begin() returns the first pixel of a window that lies in the image, and end() the pixel after the last.
    __device__ int begin(int result) const { return max(result * stride - pad, 0); }
    __device__ int end(int result) const { return min(result * stride - pad + window, extent); }
};

struct Windows {
    Axis rows, columns;
    int c;
    bool count_pad;
    Windows(const Shape& x, const Shape& y, const Pool& pool)
        : rows(x[1], y[1], pool.window.h, pool.stride.h, pool.pad.h),
          columns(x[2], y[2], pool.window.w, pool.stride.w, pool.pad.w),
          c(int(x[3])),
          count_pad(pool.count_pad) {}
    /// Returns the factor by which average pooling multiplies the sum of window (i, j).
    __device__ float share(int i, int j) const {
        if (count_pad) return 1 / float(rows.window * columns.window);
        return 1 / float((rows.end(i) - rows.begin(i)) * (columns.end(j) - columns.begin(j)));
    }
};

/// The value of a result that a thread computes.
struct Result {
    int64_t image;
    int row, column, c;
    __device__ Result(const Windows& g, int64_t i)
        : image(i / g.c / g.columns.results / g.rows.results),
          row(int(i / g.c / g.columns.results % g.rows.results)),
          column(int(i / g.c % g.columns.results)),
          c(int(i % g.c)) {}
    /// Calls f(index in the input, position in the window) for each pixel of the window that lies in the image.
    template <class F>
    __device__ void each_pixel(const Windows& g, F f) const {
        const int top = row * g.rows.stride - g.rows.pad, left = column * g.columns.stride - g.columns.pad;
        for (int i = g.rows.begin(row); i < g.rows.end(row); ++i)
            for (int j = g.columns.begin(column); j < g.columns.end(column); ++j)
                f(((size_t(image) * g.rows.extent + i) * g.columns.extent + j) * g.c + size_t(c),
                  (i - top) * g.columns.window + j - left);
    }
};

/// Max pooling. `positions` receives the index of each maximum within its window; null if not needed. The first of
/// equal values wins. NaN wins over all values, so that a diverged network remains visible.
template <class T, class Reader>
__global__ void __launch_bounds__(kThreads)
    max_pool2d_forward_kernel(Windows g, int64_t count, Reader reader, T* y, uint8_t* positions) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= count) return;
    const Result result(g, i);
    float best = 0;
    int position = -1;
    result.each_pixel(g, [&](size_t index, int place) {
        const float v = reader.value(index, result.c);
        if (position < 0 || v > best || (v != v && best == best)) best = v, position = place;
    });
    store(y + i, best);
    if (positions) positions[i] = uint8_t(position);
}

/// Computes one value of dx from the windows that contain its pixel. For max pooling, where `positions` is not null, dx
/// is the sum of dy over the windows whose maximum is at this pixel. For average pooling, dx is the sum of dy times
/// share() over all these windows.
template <class T>
struct PoolGrad {
    Windows g;
    const T* dy;
    const uint8_t* positions;
    __device__ float operator()(uint32_t pixel, int c) const { // uint32_t, since 64-bit division is slow
        const Axis &rows = g.rows, &columns = g.columns;
        const uint32_t pixels = uint32_t(rows.extent * columns.extent), image = pixel / pixels;
        // Row and column in the padded image.
        const int in_image = int(pixel % pixels), row = in_image / columns.extent + rows.pad,
                  column = in_image % columns.extent + columns.pad;
        float sum = 0;
        for (int i = min(row / rows.stride, rows.results - 1); i >= 0 && row - i * rows.stride < rows.window; --i)
            for (int j = min(column / columns.stride, columns.results - 1);
                 j >= 0 && column - j * columns.stride < columns.window; --j) {
                const int position = (row - i * rows.stride) * columns.window + column - j * columns.stride;
                const size_t index = ((size_t(image) * rows.results + i) * columns.results + j) * g.c + size_t(c);
                if (!positions)
                    sum += g.share(i, j) * load(dy + index);
                else if (positions[index] == position)
                    sum += load(dy + index);
            }
        return sum;
    }
};

template <class T>
__global__ void __launch_bounds__(kThreads) pool2d_grad_kernel(int64_t count, PoolGrad<T> value, T* dx) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i < count) store(dx + i, value(uint32_t(i / value.g.c), int(i % value.g.c)));
}

/// A `term` functor for sum_columns() (columns.cuh). Computes and stores a value of dx, and adds its NormTerms.
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
__global__ void __launch_bounds__(kThreads) avg_pool2d_forward_kernel(Windows g, int64_t count, Reader reader, T* y) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= count) return;
    const Result result(g, i);
    float sum = 0;
    result.each_pixel(g, [&](size_t index, int) { sum += reader.value(index, result.c); });
    store(y + i, g.share(result.row, result.column) * sum);
}

template <class T, class Reader>
void run_max_pool(const Windows& g, int64_t count, const Reader& reader, T* y, uint8_t* positions) {
    if (count > 0)
        RG_LAUNCH((max_pool2d_forward_kernel<T, Reader>), blocks_for(count, kThreads), kThreads, 0, stream(), g, count,
                  reader, y, positions);
}

/// Computes dx. If x, the input of the pooling, is defined, also computes the sums of dx for batch norm's gradient.
void run_pool_grad(const Call& call, const Tensor& positions) {
    using O = Pool2dGradOp;
    const auto& a = call.attrs.as<O>();
    const Tensor &dy = call.in[O::dy], &x = call.in[O::x], &dx = call.out[O::dx];
    const Windows g(dx.shape(), dy.shape(), a.pool);
    with_stored(dy, [&](auto t) {
        using T = decltype(t);
        const PoolGrad<T> value{g, pointer<T>(dy), pointer<uint8_t>(positions)};
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

} // namespace

template <class T>
void max_pool(const T* x, const Shape& s, int window, T* y) {
    const Shape to{s[0], (s[1] - window) / window + 1, (s[2] - window) / window + 1, s[3]};
    run_max_pool(Windows(s, to, {window, window}), to.numel(), Plain<T>{x}, y, nullptr);
}
template void max_pool(const float*, const Shape&, int, float*);
template void max_pool(const bf16*, const Shape&, int, bf16*);

void max_pool2d(const Call& call) {
    using O = Pool2dOp;
    const auto& a = call.attrs.as<O>();
    const Tensor &x = call.in[O::x], &y = call.out[O::y];
    const Windows g(x.shape(), y.shape(), a.pool);
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        with_reader<T>(x, call.in.subspan(O::x_stats), a.x_norm, [&](const auto& reader) {
            run_max_pool(g, y.numel(), reader, pointer<T>(y), pointer<uint8_t>(call.out[O::positions]));
        });
    });
}

void max_pool2d_grad(const Call& call) { run_pool_grad(call, call.in[Pool2dGradOp::positions]); }

void avg_pool2d(const Call& call) {
    using O = Pool2dOp;
    const auto& a = call.attrs.as<O>();
    const Tensor &x = call.in[O::x], &y = call.out[0];
    const Windows g(x.shape(), y.shape(), a.pool);
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        with_reader<T>(x, call.in.subspan(O::x_stats), a.x_norm, [&]<class Reader>(const Reader& reader) {
            if (y.numel() > 0)
                RG_LAUNCH((avg_pool2d_forward_kernel<T, Reader>), blocks_for(y.numel(), kThreads), kThreads, 0,
                          stream(), g, y.numel(), reader, pointer<T>(y));
        });
    });
}

void avg_pool2d_grad(const Call& call) { run_pool_grad(call, {}); }

} // namespace rg::RG_GPU
