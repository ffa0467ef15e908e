// Convolution with Conv::groups > 1, and its gradients: simple loops, without tensor cores. A thread computes a value
// of the result, or of the data gradient. The weight gradient is computed by sum_columns() (columns.cuh).
#include "gpu/conv.cuh"
#include "gpu/elementwise.cuh"
#include "gpu/kernels.h"

namespace rg::RG_GPU {

namespace {

/// Extents of the convolution. In g, `from` is x and `to` is y, for the data gradient as well.
struct Groups {
    ConvGeometry g;
    int c, k; // input channels and filters of a group
    Groups(const Shape& x, const Shape& y, const Tensor& w, const Conv& conv)
        : g(geometry_of(x, y, w, conv)), c(int(x[3] / conv.groups)), k(int(y[3] / conv.groups)) {}
    /// For a pixel of y, sets *index to the first value of x that filter `filter` multiplies with its values in row r
    /// and column s. Returns false if this value of x lies in the padding.
    __device__ bool locate(int64_t pixel, int filter, int r, int s, size_t* index) const {
        const int in_image = int(pixel % (g.to_h * g.to_w));
        const int row = in_image / g.to_w * g.stride.h - g.pad.h + r * g.dilation.h;
        const int column = in_image % g.to_w * g.stride.w - g.pad.w + s * g.dilation.w;
        const size_t image = size_t(pixel / (g.to_h * g.to_w));
        *index = ((image * g.from_h + row) * g.from_w + column) * g.from_c + filter / k * c;
        return row >= 0 && row < g.from_h && column >= 0 && column < g.from_w;
    }
};

/// W is the type of the filters: f32, or bf16 if they are rounded already.
template <class T, class W>
struct Conv2dGroupsForward {
    Groups a;
    const T* x;
    const W* w;
    const float* bias;
    T* y;
    __device__ void operator()(int64_t i) const {
        const ConvGeometry& g = a.g;
        const int filter = int(i % g.to_c);
        float sum = bias ? bias[filter] : 0;
        for (int r = 0; r < g.r; ++r)
            for (int s = 0; s < g.s; ++s) {
                size_t from;
                if (!a.locate(i / g.to_c, filter, r, s, &from)) continue;
                const W* const tap = w + (size_t(filter) * g.r * g.s + r * g.s + s) * a.c;
                for (int c = 0; c < a.c; ++c) sum += load(x + from + c) * as_stored(load(tap + c), T{});
            }
        store(y + i, sum);
    }
};

/// Returns the row (column) of y for which filter row (column) `tap` multiplies row (column) `in` of x; -1 if none.
__device__ __forceinline__ int result_of(int in, int tap, int stride, int pad, int dilation, int results) {
    const int distance = in + pad - tap * dilation;
    return distance >= 0 && distance % stride == 0 && distance / stride < results ? distance / stride : -1;
}

template <class T, class W>
struct Conv2dGroupsDgrad {
    Groups a;
    const T* dy;
    const W* w;
    T* dx;
    __device__ void operator()(int64_t i) const {
        const ConvGeometry& g = a.g;
        const int channel = int(i % g.from_c), column = int(i / g.from_c % g.from_w),
                  row = int(i / g.from_c / g.from_w % g.from_h);
        const size_t image = size_t(i / g.from_c / g.from_w / g.from_h);
        const int first_filter = channel / a.c * a.k;
        float sum = 0;
        for (int r = 0; r < g.r; ++r) {
            const int p = result_of(row, r, g.stride.h, g.pad.h, g.dilation.h, g.to_h);
            for (int s = 0; s < g.s && p >= 0; ++s) {
                const int q = result_of(column, s, g.stride.w, g.pad.w, g.dilation.w, g.to_w);
                if (q < 0) continue;
                const T* const from = dy + ((image * g.to_h + p) * g.to_w + q) * g.to_c + first_filter;
                for (int k = 0; k < a.k; ++k) {
                    const W* const tap = w + (size_t(first_filter + k) * g.r * g.s + r * g.s + s) * a.c;
                    sum += load(from + k) * as_stored(load(tap + channel % a.c), T{});
                }
            }
        }
        store(dx + i, sum);
    }
};

/// A `term` functor for sum_columns(). Columns are filter values: column = value's number in its filter * number of
/// filters + filter. The first sum adds the products of x and dy for dw, the second adds dy for the bias gradient.
template <class T>
struct WgradTerms {
    Groups a;
    const T *x, *dy;
    __device__ void operator()(int64_t pixel, int column, TwoSums (&sum)[1]) const {
        const int filter = column % a.g.to_c, tap = column / a.g.to_c / a.c, c = column / a.g.to_c % a.c;
        const float gradient = load(dy + size_t(pixel) * a.g.to_c + filter);
        size_t index;
        if (a.locate(pixel, filter, tap / a.g.s, tap % a.g.s, &index)) sum[0].first += gradient * load(x + index + c);
        sum[0].second += gradient;
    }
};
/// Stores the sums of WgradTerms. All values of a filter have the same second sum.
struct StoreWgrad {
    int filters, values; // number of filters, and of values in a filter
    float *dw, *dbias;
    __device__ void operator()(int column, double first, double second) const {
        const int filter = column % filters, value = column / filters;
        dw[size_t(filter) * values + value] = float(first);
        if (value == 0) dbias[filter] = float(second);
    }
};

} // namespace

void conv2d_in_groups(const Call& call) {
    using O = Conv2dOp;
    const auto& attrs = call.attrs.as<O>();
    const Tensor &x = call.in[O::x], &w = call.in[O::w], &y = call.out[O::y];
    const Groups a(x.shape(), y.shape(), w, attrs.conv);
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        GivenFilters(w).visit([&]<class W>(const W* filters) {
            elementwise(y.numel(), Conv2dGroupsForward<T, W>{a, pointer<T>(x), filters,
                                                             pointer<float>(call.in[O::bias]), pointer<T>(y)});
        });
    });
    if (attrs.with_stats) channel_stats({{}, {{y}}, {{call.out[O::stats]}}});
}

void conv2d_grad_in_groups(const Call& call) {
    using O = Conv2dGradOp;
    const auto& attrs = call.attrs.as<O>();
    const Tensor &dy = call.in[O::dy], &x = call.in[O::x], &w = call.in[O::w], &dx = call.out[O::dx];
    const Groups a(attrs.data ? dx.shape() : x.shape(), dy.shape(), w, attrs.conv);
    with_stored(dy, [&](auto t) {
        using T = decltype(t);
        if (attrs.filters) {
            const int values = a.g.r * a.g.s * a.c;
            sum_columns<1>(
                a.g.pixels(), int64_t(a.g.to_c) * values, WgradTerms<T>{a, pointer<T>(x), pointer<T>(dy)},
                StoreWgrad{a.g.to_c, values, pointer<float>(call.out[O::dw]), pointer<float>(call.out[O::dbias])});
        }
        if (!attrs.data) return;
        GivenFilters(w).visit([&]<class W>(const W* filters) {
            elementwise(dx.numel(), Conv2dGroupsDgrad<T, W>{a, pointer<T>(dy), filters, pointer<T>(dx)});
        });
    });
}

} // namespace rg::RG_GPU
