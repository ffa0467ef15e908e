// Max and average pooling and their gradients. The forward ops can apply a batch norm to their input on load. The
// gradient ops can also compute the sums that the gradient of this batch norm needs.
//
// A thread computes kWidth neighbouring channels (octets.cuh) of a pixel of the result or, if it also computes sums, of
// several pixels. For a pixel of dx, it visits all windows that contain the pixel, so that overlapping windows need no
// atomics.
#include "gpu/divisor.cuh"
#include "gpu/kernels.h"
#include "gpu/norm.cuh"
#include "gpu/octets.cuh"

namespace rg::RG_GPU {

namespace {

constexpr int kThreads = 256;

/// The windows along one axis of an image.
struct WindowAxis {
    Divisor extent, results, stride;
    int window, pad;
    WindowAxis(int64_t extent, int64_t results, int64_t window, int64_t stride, int64_t pad)
        : extent(int(extent)), results(int(results)), stride(int(stride)), window(int(window)), pad(int(pad)) {}
    /// begin() returns a window's first pixel inside the image, and end() the pixel after its last one there.
    __device__ int begin(int result) const { return max(result * stride - pad, 0); }
    __device__ int end(int result) const { return min(result * stride - pad + window, int(extent)); }
};

struct Windows {
    WindowAxis rows, columns;
    int c;
    bool count_pad;
    Windows(const Shape& x, const Shape& y, const Pool& pool)
        : rows(x[1], y[1], pool.window.h, pool.stride.h, pool.pad.h),
          columns(x[2], y[2], pool.window.w, pool.stride.w, pool.pad.w),
          c(int(x[3])),
          count_pad(pool.count_pad) {
        const int64_t work = std::max(x.numel(), y.numel()) / (c % 8 == 0 ? 8 : 1);
        RG_CHECK(work < INT32_MAX, "pooling: expected less than 2^31 values, or octets of values, got ", work);
    }
    /// Returns the factor by which average pooling multiplies the sum of window (i, j).
    __device__ float inverse_count(int i, int j) const {
        if (count_pad) return 1 / float(rows.window * columns.window);
        return 1 / float((rows.end(i) - rows.begin(i)) * (columns.end(j) - columns.begin(j)));
    }
};

/// Divides the values of a result among threads, kWidth neighbouring channels each. Gradients with sums use
/// sum_columns() instead.
template <int kWidth>
struct ThreadWork {
    int threads;   // number of threads that have work
    Divisor lanes; // number of threads per pixel
    ThreadWork(int64_t values, int c) : threads(int(values / kWidth)), lanes(c / kWidth) {}
    unsigned blocks() const { return blocks_for(threads, kThreads); }
    /// Calls f(pixel, channel, index) with the number of the thread's pixel, counted through all images, the first of
    /// its channels, and the index of its first value.
    template <class F>
    __device__ __forceinline__ void run(F f) const {
        const int i = int(blockIdx.x) * kThreads + int(threadIdx.x);
        if (i < threads) f(i / lanes, i % lanes * kWidth, size_t(i) * kWidth);
    }
};

/// The image, row and column of a pixel of a result.
struct PooledPixel {
    int image, row, column;
    __device__ PooledPixel(const Windows& g, int pixel)
        : image(pixel / g.columns.results / g.rows.results),
          row(pixel / g.columns.results % g.rows.results),
          column(pixel % g.columns.results) {}
    /// Returns the position in the window of its first pixel that lies in the image.
    __device__ int first_position(const Windows& g) const {
        return max(g.rows.pad - row * g.rows.stride, 0) * g.columns.window +
               max(g.columns.pad - column * g.columns.stride, 0);
    }
    /// Calls f(index in the input, position in the window) for each pixel of the window that lies in the image.
    template <class F>
    __device__ __forceinline__ void each_pixel(const Windows& g, int channel, F f) const {
        const int top = row * g.rows.stride - g.rows.pad, left = column * g.columns.stride - g.columns.pad;
        for (int i = g.rows.begin(row); i < g.rows.end(row); ++i) {
            RG_UNROLL_4
            for (int j = g.columns.begin(column); j < g.columns.end(column); ++j)
                f(((size_t(image) * g.rows.extent + i) * g.columns.extent + j) * g.c + channel,
                  (i - top) * g.columns.window + j - left);
        }
    }
};

/// Stores kWidth (1 or 8) positions as bytes. With 8, `to` must be aligned to 8 bytes.
template <int kWidth>
__device__ __forceinline__ void store_positions(uint8_t* to, const int (&positions)[kWidth]) {
    if constexpr (kWidth == 1) {
        *to = uint8_t(positions[0]);
    } else {
        uint64_t bytes = 0;
        RG_UNROLL
        for (int i = 0; i < kWidth; ++i) bytes |= uint64_t(positions[i]) << 8 * i;
        *reinterpret_cast<uint64_t*>(to) = bytes;
    }
}

/// Max pooling. `positions` receives the index of each maximum within its window. The first of equal values wins. NaN
/// wins over all values, so that a diverged network remains visible.
template <class T, int kWidth, class Reader>
__global__ void __launch_bounds__(kThreads)
    max_pool2d_forward_kernel(Windows g, ThreadWork<kWidth> work, Reader reader, T* y, uint8_t* positions) {
    work.run([&](int pixel, int channel, size_t to) {
        const VectorReader<kWidth, Reader> source(reader, channel);
        const PooledPixel result(g, pixel);
        float best[kWidth];
        int position[kWidth];
        RG_UNROLL
        for (int i = 0; i < kWidth; ++i) best[i] = -INFINITY, position[i] = result.first_position(g);
        result.each_pixel(g, channel, [&](size_t index, int place) {
            float v[kWidth];
            source.read(index, v);
            RG_UNROLL
            for (int i = 0; i < kWidth; ++i)
                if (!(v[i] <= best[i]) && best[i] == best[i]) best[i] = v[i], position[i] = place;
        });
        store_rounded<kWidth>(y + to, best);
        store_positions<kWidth>(positions + to, position);
    });
}

/// Computes kWidth values of dx from the windows that contain their pixel. For max pooling, where `positions` is not
/// null, a value of dx is the sum of dy over those windows whose maximum is at this pixel. For average pooling, it is
/// the sum of dy * inverse_count() over all windows that contain the pixel.
template <class T, int kWidth>
struct PoolGrad {
    Windows g;
    const T* dy;
    const uint8_t* positions;
    __device__ __forceinline__ void compute(int pixel, int channel, float (&sum)[kWidth]) const {
        const WindowAxis &rows = g.rows, &columns = g.columns;
        const int row_of_all = pixel / columns.extent, image = row_of_all / rows.extent;
        // Row and column in the padded image.
        const int row = row_of_all % rows.extent + rows.pad, column = pixel % columns.extent + columns.pad;
        const VectorReader<kWidth, Plain<T>> source({dy}, channel);
        RG_UNROLL
        for (float& s : sum) s = 0;
        for (int i = min(row / rows.stride, rows.results - 1); i >= 0 && row - i * rows.stride < rows.window; --i)
            for (int j = min(column / columns.stride, columns.results - 1);
                 j >= 0 && column - j * columns.stride < columns.window; --j) {
                const size_t index = ((size_t(image) * rows.results + i) * columns.results + j) * g.c + channel;
                float v[kWidth];
                source.read(index, v);
                if (positions) {
                    const int position = (row - i * rows.stride) * columns.window + column - j * columns.stride;
                    keep(v, position, positions + index);
                }
                const float factor = positions ? 1 : g.inverse_count(i, j);
                RG_UNROLL
                for (int c = 0; c < kWidth; ++c) sum[c] += factor * v[c];
            }
    }

private:
    /// Sets each value of dy to 0 if its window has the maximum at another position than `position`.
    static __device__ __forceinline__ void keep(float (&v)[kWidth], int position, const uint8_t* positions_of_v) {
        uint64_t bytes;
        if constexpr (kWidth == 8)
            bytes = *reinterpret_cast<const uint64_t*>(positions_of_v);
        else
            bytes = *positions_of_v;
        RG_UNROLL
        for (int c = 0; c < kWidth; ++c)
            if (int(uint8_t(bytes >> 8 * c)) != position) v[c] = 0;
    }
};

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    pool2d_grad_kernel(ThreadWork<kWidth> work, PoolGrad<T, kWidth> gradient, T* dx) {
    work.run([&](int pixel, int channel, size_t to) {
        float v[kWidth];
        gradient.compute(pixel, channel, v);
        store_rounded<kWidth>(dx + to, v);
    });
}

/// A `term` functor for sum_columns() (columns.cuh). Computes and stores values of dx, and adds their NormTerms.
template <class T, int kWidth>
struct PoolGradTerms {
    PoolGrad<T, kWidth> gradient;
    NormTerms<T> terms;
    T* dx;
    __device__ __forceinline__ void operator()(int64_t pixel, int channel, TwoSums (&sum)[kWidth]) const {
        const size_t index = size_t(pixel) * gradient.g.c + channel;
        float x[kWidth], v[kWidth];
        VectorReader<kWidth, Plain<T>>({terms.x}, channel).read(index, x);
        gradient.compute(int(pixel), channel, v);
        store_rounded<kWidth>(dx + index, v);
        terms.add_of(v, x, channel, sum);
    }
};

template <class T, int kWidth, class Reader>
__global__ void __launch_bounds__(kThreads)
    avg_pool2d_forward_kernel(Windows g, ThreadWork<kWidth> work, Reader reader, T* y) {
    work.run([&](int pixel, int channel, size_t to) {
        const VectorReader<kWidth, Reader> source(reader, channel);
        const PooledPixel result(g, pixel);
        float sum[kWidth] = {};
        result.each_pixel(g, channel, [&](size_t index, int) {
            float v[kWidth];
            source.read(index, v);
            RG_UNROLL
            for (int i = 0; i < kWidth; ++i) sum[i] += v[i];
        });
        const float share = g.inverse_count(result.row, result.column);
        RG_UNROLL
        for (float& s : sum) s *= share;
        store_rounded<kWidth>(y + to, sum);
    });
}

/// Computes dx. If x, the input of the pooling, is defined, also computes the sums of dx for batch norm's gradient.
void run_pool_grad(const Call& call, const Tensor& positions) {
    using O = Pool2dGradOp;
    const auto& a = call.attrs.as<O>();
    const Tensor &dy = call.in[O::dy], &x = call.in[O::x], &dx = call.out[O::dx];
    const Windows g(dx.shape(), dy.shape(), a.pool);
    with_stored(dy, [&](auto t) {
        with_width(g.c, [&](auto width) {
            using T = decltype(t);
            constexpr int kWidth = decltype(width)::value;
            const PoolGrad<T, kWidth> gradient{g, pointer<T>(dy), pointer<uint8_t>(positions)};
            if (x.defined()) {
                const NormCoefficients norm(a.x_norm.given(call.in));
                const NormGradientSums sums(norm, dx, x, call.out[O::x_dgamma], call.out[O::x_dbeta],
                                            call.out[O::x_sums]);
                sum_columns<kWidth>(dx.numel() / g.c, g.c,
                                    PoolGradTerms<T, kWidth>{gradient, sums.terms<T>(), pointer<T>(dx)}, sums.finish());
            } else if (dx.numel() > 0) {
                const ThreadWork<kWidth> work(dx.numel(), g.c);
                RG_LAUNCH((pool2d_grad_kernel<T, kWidth>), work.blocks(), kThreads, 0, stream(), work, gradient,
                          pointer<T>(dx));
            }
        });
    });
}

/// Calls launch(T(), Constant<kWidth>, windows, work, reader of x), unless y is empty. T is the type of x in memory.
template <class F>
void run_pool(const Call& call, const F& launch) {
    using O = Pool2dOp;
    const auto& a = call.attrs.as<O>();
    const Tensor &x = call.in[O::x], &y = call.out[O::y];
    if (y.numel() == 0) return;
    const Windows g(x.shape(), y.shape(), a.pool);
    with_stored(x, [&](auto t) {
        with_reader<decltype(t)>(a.x_norm.operand(call.in), [&](const auto& reader) {
            with_width(g.c, [&](auto width) {
                launch(t, width, g, ThreadWork<decltype(width)::value>(y.numel(), g.c), reader);
            });
        });
    });
}

} // namespace

void max_pool2d(const Call& call) {
    run_pool(call, [&]<class T, class Width, class Work, class Reader>(T, Width, const Windows& g, const Work& work,
                                                                       const Reader& reader) {
        RG_LAUNCH((max_pool2d_forward_kernel<T, Width::value, Reader>), work.blocks(), kThreads, 0, stream(), g, work,
                  reader, pointer<T>(call.out[Pool2dOp::y]), pointer<uint8_t>(call.out[Pool2dOp::positions]));
    });
}

void max_pool2d_grad(const Call& call) { run_pool_grad(call, call.in[Pool2dGradOp::positions]); }

void avg_pool2d(const Call& call) {
    run_pool(call, [&]<class T, class Width, class Work, class Reader>(T, Width, const Windows& g, const Work& work,
                                                                       const Reader& reader) {
        RG_LAUNCH((avg_pool2d_forward_kernel<T, Width::value, Reader>), work.blocks(), kThreads, 0, stream(), g, work,
                  reader, pointer<T>(call.out[Pool2dOp::y]));
    });
}

void avg_pool2d_grad(const Call& call) { run_pool_grad(call, {}); }

} // namespace rg::RG_GPU
