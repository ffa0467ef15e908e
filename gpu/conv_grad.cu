// The weight gradient of a convolution as an implicit matrix product. Rows are filters, columns are taps (values of a
// filter), and the sum runs over pixels of y. The pixels are split between blocks. A second kernel adds their sums in a
// fixed order, so that every run gives the same bits. An additional last tap, whose x is 1, gives the bias gradient.
//
// A block of 4 warps computes 64 filters x 64 taps, 32 pixels at a time. Both operands are in shared memory with one
// row per pixel. The tensor cores need them transposed: ldmatrix does this for bf16, and single loads do it for f32.
// f32 operands are multiplied as three tf32 products (products.cuh). Readers (values.cuh) transform x and dy on load.
#include "ringgrad/gpu/conv.cuh"
#include "ringgrad/gpu/kernels.h"
#include "ringgrad/gpu/products.cuh"

#include <optional>

namespace rg::RG_GPU {

namespace {

constexpr int kFilters = 64, kTaps = 64, kPixels = 32, kThreads = 128, kPitch = kTaps + 8;
/// kBlocks is the desired number of blocks: two for each of the 132 SMs of an H100. The blocks of a tile of the result
/// split the pixels. A tile gets at most one block per 512 pixels (rounded up), since all blocks' sums are added.
constexpr int64_t kBlocks = 264, kPixelsPerBlock = 512;

/// Reads dy of a pixel for 8 filters, beginning with filter `first`. Pixel -1 is beyond the last; its values are 0.
template <bool kWhole, class Reader>
__device__ __forceinline__ void gather_dy(const Geometry& g, const Reader& reader, int64_t pixel, int first,
                                          float (&v)[8]) {
    if (kWhole && pixel >= 0 && first < g.out_c) return reader.values(size_t(pixel) * g.out_c + first, first, v);
    RG_UNROLL
    for (int i = 0; i < 8; ++i)
        v[i] = pixel >= 0 && first + i < g.out_c ? reader.value(size_t(pixel) * g.out_c + first + i, first + i) : 0;
}

/// Reads the values of x that 8 taps, beginning with tap `first`, multiply for a pixel of y. Taps beyond the filter
/// read 1: the first of them is the tap of the bias, and the rest is never stored. For pixel -1, the values do not
/// matter, since dy is 0 there.
template <bool kWhole, class Reader>
__device__ __forceinline__ void gather_x(const Geometry& g, const Reader& reader, int64_t pixel, int first,
                                         float (&v)[8]) {
    const int in_image = int(pixel % (g.out_h * g.out_w)), image = int(pixel / (g.out_h * g.out_w));
    // For pixel -1, all taps lie above the image.
    const int first_row = pixel < 0 ? -g.r * g.dilation.h : in_image / g.out_w * g.stride.h - g.pad.h;
    const int first_column = in_image % g.out_w * g.stride.w - g.pad.w;
    const auto locate = [&](const Tap& tap, size_t* index) {
        const int row = first_row + tap.r * g.dilation.h, column = first_column + tap.s * g.dilation.w;
        *index = (size_t(image * g.in_h + row) * g.in_w + column) * g.in_c + tap.c;
        return row >= 0 && row < g.in_h && column >= 0 && column < g.in_w;
    };
    size_t index;
    Tap tap(g.in_c, g.s, first);
    if constexpr (kWhole) {
        if (tap.r < g.r && locate(tap, &index)) return reader.values(index, tap.c, v);
        RG_UNROLL
        for (float& value : v) value = float(tap.r >= g.r);
    } else {
        RG_UNROLL
        for (int t = 0; t < 8; ++t) {
            v[t] = tap.r < g.r && locate(tap, &index) ? reader.value(index, tap.c) : float(tap.r >= g.r);
            tap.next<false>(g.in_c, g.s);
        }
    }
}

__device__ __forceinline__ void multiply(const bf16* dy, const bf16* x, float (&sum)[2][4][4]) {
    const int lane = int(threadIdx.x) % 32;
    for (int t = 0; t < kPixels; t += 16) {
        uint32_t rows[2][4], columns[2];
        RG_UNROLL
        for (int m = 0; m < 2; ++m)
            ldmatrix_x4_trans(rows[m], dy + (t + lane % 8 + lane / 16 * 8) * kPitch + 16 * m + lane / 8 % 2 * 8);
        RG_UNROLL
        for (int n = 0; n < 4; ++n) {
            ldmatrix_x2_trans(columns, x + (t + lane % 16) * kPitch + 8 * n);
            RG_UNROLL
            for (int m = 0; m < 2; ++m) mma_bf16_16x8x16(sum[m][n], rows[m], columns);
        }
    }
}

__device__ __forceinline__ void multiply(const float* dy, const float* x, float (&sum)[2][4][4]) {
    const int group = int(threadIdx.x) % 32 / 4, t0 = int(threadIdx.x) % 4;
    for (int t = 0; t < kPixels; t += 8) {
        float rows[2][4], columns[2];
        RG_UNROLL
        for (int m = 0; m < 2; ++m) RG_UNROLL
        for (int i = 0; i < 4; ++i) rows[m][i] = dy[(t + t0 + i / 2 * 4) * kPitch + 16 * m + group + i % 2 * 8];
        RG_UNROLL
        for (int n = 0; n < 4; ++n) {
            RG_UNROLL
            for (int i = 0; i < 2; ++i) columns[i] = x[(t + t0 + 4 * i) * kPitch + 8 * n + group];
            RG_UNROLL
            for (int m = 0; m < 2; ++m) mma_f32_16x8x8(sum[m][n], rows[m], columns);
        }
    }
}

/// Stores each block's sums over its pixels to partials [splits][filters][taps + 1]; a split is a range of pixels. The
/// launch bound asks for 2 blocks per SM: with 3, the compiler spills registers.
template <class T, bool kWhole, class DyReader, class XReader>
__global__ void __launch_bounds__(kThreads, 2)
    conv2d_wgrad_kernel(Geometry g, DyReader dy_reader, XReader x_reader, int64_t pixels_per_split,
                        float* __restrict__ partials) {
    SHARED(T, dy, kPixels * kPitch);
    SHARED(T, x, kPixels * kPitch);
    const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int first_filter = int(blockIdx.y) * kFilters, first_tap = int(blockIdx.x) * kTaps;
    const int64_t begin = int64_t(blockIdx.z) * pixels_per_split;
    const int64_t end = begin + pixels_per_split < g.pixels() ? begin + pixels_per_split : g.pixels();

    // In each step of 32 pixels, this thread loads dy of 16 filters and x of 16 taps for one pixel.
    const int pixel = thread / 4, first = thread % 4 * 16;
    float next_dy[2][8], next_x[2][8];
    const auto fetch = [&](int64_t from) {
        const int64_t loaded = from + pixel < end ? from + pixel : -1;
        RG_UNROLL
        for (int i = 0; i < 2; ++i) {
            gather_dy<kWhole>(g, dy_reader, loaded, first_filter + first + 8 * i, next_dy[i]);
            gather_x<kWhole>(g, x_reader, loaded, first_tap + first + 8 * i, next_x[i]);
        }
    };

    float sum[2][4][4] = {};
    const int row = warp / 2 * 32, column = warp % 2 * 32; // first row and column of this warp's results
    fetch(begin);
    for (int64_t from = begin; from < end; from += kPixels) {
        __syncthreads(); // all warps have read the previous tiles
        RG_UNROLL
        for (int i = 0; i < 2; ++i) RG_UNROLL
        for (int j = 0; j < 8; j += 2) {
            store_pair(dy + pixel * kPitch + first + 8 * i + j, next_dy[i][j], next_dy[i][j + 1]);
            store_pair(x + pixel * kPitch + first + 8 * i + j, next_x[i][j], next_x[i][j + 1]);
        }
        __syncthreads();
        if (from + kPixels < end) fetch(from + kPixels);
        multiply(dy + row, x + column, sum);
    }

    const int taps = g.taps() + 1;
    float* const partial = partials + size_t(blockIdx.z) * g.out_c * taps;
    RG_UNROLL
    for (int m = 0; m < 2; ++m) RG_UNROLL
    for (int n = 0; n < 4; ++n) RG_UNROLL
    for (int i = 0; i < 4; ++i) {
        const int filter = first_filter + row + 16 * m + lane / 4 + i / 2 * 8;
        const int tap = first_tap + column + 8 * n + lane % 4 * 2 + i % 2;
        if (filter < g.out_c && tap < taps) partial[size_t(filter) * taps + tap] = sum[m][n][i];
    }
}

/// Adds the sums of all splits and stores dw and db. There may be many splits, so 8 threads share each value.
__global__ void conv2d_wgrad_reduce_kernel(int splits, int k, int taps, const float* partials, float* dw, float* db) {
    SHARED(double, sums, 8 * 32);
    const int value = int(threadIdx.x) % 32, first = int(threadIdx.x) / 32;
    const int64_t i = int64_t(blockIdx.x) * 32 + value, count = int64_t(k) * (taps + 1);
    double sum = 0;
    if (i < count)
        for (int split = first; split < splits; split += 8) sum += double(partials[split * count + i]);
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (first > 0 || i >= count) return;
    for (int other = 1; other < 8; ++other) sum += sums[other * 32 + value];
    const int64_t filter = i / (taps + 1), tap = i % (taps + 1);
    (tap < taps ? dw[filter * taps + tap] : db[filter]) = float(sum);
}

/// Computes dw [filters, rows, columns, channels] and db [filters].
template <class T, class DyReader, class XReader>
void run_wgrad(const Geometry& g, const DyReader& dy, const XReader& x, const Tensor& dw, const Tensor& db) {
    const dim3 tiles(blocks_for(g.taps() + 1, kTaps), blocks_for(g.out_c, kFilters));
    const int64_t count = int64_t(g.out_c) * (g.taps() + 1), blocks = int64_t(tiles.x) * tiles.y;
    const int64_t max_splits =
        std::min((kBlocks + blocks - 1) / blocks, (g.pixels() + kPixelsPerBlock - 1) / kPixelsPerBlock);
    const int64_t per_split = (g.pixels() / std::max<int64_t>(1, max_splits) + kPixels) / kPixels * kPixels;
    const unsigned splits = blocks_for(g.pixels(), per_split);
    const Scratch<float> partials(splits * size_t(count));
    const dim3 grid(tiles.x, tiles.y, splits);
    if (splits > 0) {
        if (g.in_c % 8 == 0 && g.out_c % 8 == 0)
            RG_LAUNCH((conv2d_wgrad_kernel<T, true, DyReader, XReader>), grid, kThreads, 0, stream(), g, dy, x,
                      per_split, partials);
        else
            RG_LAUNCH((conv2d_wgrad_kernel<T, false, DyReader, XReader>), grid, kThreads, 0, stream(), g, dy, x,
                      per_split, partials);
    }
    RG_LAUNCH(conv2d_wgrad_reduce_kernel, blocks_for(count, 32), 256, 0, stream(), int(splits), g.out_c, g.taps(),
              partials, pointer<float>(dw), pointer<float>(db));
}

} // namespace

// If y is given, a batch norm follows the convolution, and dy is the gradient with respect to its result. The kernels
// then compute the gradient with respect to y, the result of the convolution, while they load dy and y.
void conv2d_grad(const Call& call) {
    using O = Conv2dGradOp;
    const auto& a = call.attrs.as<O>();
    if (a.conv.groups > 1) return conv2d_grad_in_groups(call);
    const Tensor &dy = call.in[O::dy], &x = call.in[O::x], &w = call.in[O::w], &y = call.in[O::y];
    const Tensor &dw = call.out[O::dw], &dbias = call.out[O::dbias], &dx = call.out[O::dx];
    const Geometry g = geometry_of(a.data ? dx.shape() : x.shape(), dy.shape(), w, a.conv);
    with_stored(dy, [&](auto t) {
        using T = decltype(t);
        if (!y.defined()) {
            const Plain<T> reader{pointer<T>(dy)};
            if (a.filters) run_wgrad<T>(g, reader, Plain<T>{pointer<T>(x)}, dw, dbias);
            if (a.data) data_gradient<T>(reader, dy.shape(), w, a.conv, call.in[O::addend], dx, nullptr);
            return;
        }
        const Norm y_norm(call.in.subspan(O::y_stats, 3), a.y_norm, call.in[O::y_sums], double(g.pixels()));
        const NormGradient<T> reader = y_norm.gradient<T>(dy, y);
        std::optional<Norm> x_norm;
        if (call.in[O::x_stats].defined()) x_norm.emplace(call.in.subspan(O::x_stats, 3), a.x_norm);
        if (x_norm)
            run_wgrad<T>(g, reader, x_norm->read<T>(x), dw, dbias);
        else
            run_wgrad<T>(g, reader, Plain<T>{pointer<T>(x)}, dw, dbias);
        std::optional<NormSums> sums;
        if (a.with_sums) sums.emplace(*x_norm, dx, x, call.out[O::x_dgamma], call.out[O::x_dbeta]);
        if (a.data)
            data_gradient<T>(reader, y.shape(), w, a.conv, call.in[O::addend], dx, sums ? &*sums : nullptr);
    });
}

} // namespace rg::RG_GPU
