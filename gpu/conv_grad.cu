// The gradient of the filters as a product of matrices: rows are filters, columns are taps, and the sum runs over
// pixels. Pixels are split over blocks, whose sums are added in a fixed order afterwards: the same bits in every run.
// The bias is the filter of one more tap, behind the others, whose x is 1 everywhere.
//
// A block of 4 warps makes 64 filters x 64 taps, 32 pixels at a time. Both operands lie in shared memory as they come,
// by pixels; ldmatrix turns them on the way to the tensor cores. Precision and what is applied on the way in are as in
// conv.cu.
#include "gpu/kernels.h"
#include "gpu/mma.cuh"
#include "gpu/norm.cuh"
#include "gpu/products.cuh"

#include <optional>

namespace rg::RG_GPU {

namespace {

constexpr int kFilters = 64, kTaps = 64, kPixels = 32, kThreads = 128, kPitch = kTaps + 8;
/// Blocks that fill a large GPU twice; and pixels that are worth a block's partial sum.
constexpr int64_t kBlocks = 264, kPixelsPerBlock = 512;

struct Geometry {
    int images, h, w, c, p, q, k, r, s, stride, pad;
    __host__ __device__ int64_t pixels() const { return int64_t(images) * p * q; }
    __host__ __device__ int taps() const { return r * s * c; } // without that of the bias
};

/// 8 filters of dy at a pixel; -1: beyond the last.
template <bool kWhole, class Read>
__device__ __forceinline__ void gather_dy(const Geometry& g, const Read& read, int64_t pixel, int first,
                                          float (&v)[8]) {
    if (kWhole && pixel >= 0 && first < g.k) return read.values(size_t(pixel) * g.k + first, first, v);
    RG_UNROLL
    for (int i = 0; i < 8; ++i)
        v[i] = pixel >= 0 && first + i < g.k ? read.value(size_t(pixel) * g.k + first + i, first + i) : 0;
}

/// 8 taps of x for a pixel of the result; 1 for those behind the last, of which the first is that of the bias, and for
/// pixels beyond the last, too, where dy is 0.
template <bool kWhole, class Read>
__device__ __forceinline__ void gather_x(const Geometry& g, const Read& read, int64_t pixel, int first, float (&v)[8]) {
    const int in_image = int(pixel % (g.p * g.q)), image = int(pixel / (g.p * g.q));
    const int first_row = pixel < 0 ? -g.r : in_image / g.q * g.stride - g.pad; // none: all taps above the image
    const int first_column = in_image % g.q * g.stride - g.pad;
    const auto at = [&](const Tap& tap, size_t* from) {
        const int row = first_row + tap.r, column = first_column + tap.s;
        *from = (size_t(image * g.h + row) * g.w + column) * g.c + tap.c;
        return row >= 0 && row < g.h && column >= 0 && column < g.w;
    };
    size_t from;
    Tap tap(g.c, g.s, first);
    if constexpr (kWhole) {
        if (tap.r < g.r && at(tap, &from)) return read.values(from, tap.c, v);
        RG_UNROLL
        for (float& value : v) value = float(tap.r >= g.r);
    } else {
        RG_UNROLL
        for (int t = 0; t < 8; ++t) {
            v[t] = tap.r < g.r && at(tap, &from) ? read.value(from, tap.c) : float(tap.r >= g.r);
            tap.next<false>(g.c, g.s);
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

/// parts [splits][k][taps + 1]: each block's sum over its pixels. No more blocks than kBlocks are to run at once: for a
/// third one on a multiprocessor the compiler would spill registers.
template <class T, bool kWhole, class ReadDy, class ReadX>
__global__ void __launch_bounds__(kThreads, 2)
    filter_gradient(Geometry g, ReadDy read_dy, ReadX read_x, int64_t pixels_per_split, float* __restrict__ parts) {
    SHARED(T, dy, kPixels * kPitch);
    SHARED(T, x, kPixels * kPitch);
    const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int first_filter = int(blockIdx.y) * kFilters, first_tap = int(blockIdx.x) * kTaps;
    const int64_t begin = int64_t(blockIdx.z) * pixels_per_split;
    const int64_t end = begin + pixels_per_split < g.pixels() ? begin + pixels_per_split : g.pixels();

    // This thread brings 16 filters of dy and 16 taps of x of one pixel.
    const int pixel = thread / 4, part = thread % 4 * 16;
    float coming_dy[2][8], coming_x[2][8];
    const auto fetch = [&](int64_t from) {
        const int64_t at = from + pixel < end ? from + pixel : -1;
        RG_UNROLL
        for (int i = 0; i < 2; ++i) {
            gather_dy<kWhole>(g, read_dy, at, first_filter + part + 8 * i, coming_dy[i]);
            gather_x<kWhole>(g, read_x, at, first_tap + part + 8 * i, coming_x[i]);
        }
    };

    float sum[2][4][4] = {};
    const int row = warp / 2 * 32, column = warp % 2 * 32; // of this warp's results
    fetch(begin);
    for (int64_t from = begin; from < end; from += kPixels) {
        __syncthreads(); // the tiles have been read
        RG_UNROLL
        for (int i = 0; i < 2; ++i) RG_UNROLL
        for (int j = 0; j < 8; j += 2) {
            put(dy + pixel * kPitch + part + 8 * i + j, coming_dy[i][j], coming_dy[i][j + 1]);
            put(x + pixel * kPitch + part + 8 * i + j, coming_x[i][j], coming_x[i][j + 1]);
        }
        __syncthreads();
        if (from + kPixels < end) fetch(from + kPixels);
        multiply(dy + row, x + column, sum);
    }

    const int taps = g.taps() + 1;
    float* const to = parts + size_t(blockIdx.z) * g.k * taps;
    RG_UNROLL
    for (int m = 0; m < 2; ++m) RG_UNROLL
    for (int n = 0; n < 4; ++n) RG_UNROLL
    for (int i = 0; i < 4; ++i) {
        const int filter = first_filter + row + 16 * m + lane / 4 + i / 2 * 8;
        const int tap = first_tap + column + 8 * n + lane % 4 * 2 + i % 2;
        if (filter < g.k && tap < taps) to[size_t(filter) * taps + tap] = sum[m][n][i];
    }
}

/// 8 threads for each of 32 values: of few values there are many parts.
__global__ void add_parts(int splits, int k, int taps, const float* parts, float* dw, float* db) {
    SHARED(double, sums, 8 * 32);
    const int value = int(threadIdx.x) % 32, first = int(threadIdx.x) / 32;
    const int64_t i = int64_t(blockIdx.x) * 32 + value, count = int64_t(k) * (taps + 1);
    double sum = 0;
    if (i < count)
        for (int split = first; split < splits; split += 8) sum += double(parts[split * count + i]);
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (first > 0 || i >= count) return;
    for (int other = 1; other < 8; ++other) sum += sums[other * 32 + value];
    const int64_t filter = i / (taps + 1), tap = i % (taps + 1);
    (tap < taps ? dw[filter * taps + tap] : db[filter]) = float(sum);
}

/// dw [k r s c] and db [k].
template <class T, class ReadDy, class ReadX>
void gradients(const Geometry& g, const ReadDy& dy, const ReadX& x, const Tensor& dw, const Tensor& db) {
    const dim3 tiles(blocks_for(g.taps() + 1, kTaps), blocks_for(g.k, kFilters));
    const int64_t count = int64_t(g.k) * (g.taps() + 1), blocks = int64_t(tiles.x) * tiles.y;
    const int64_t wanted =
        std::min((kBlocks + blocks - 1) / blocks, (g.pixels() + kPixelsPerBlock - 1) / kPixelsPerBlock);
    const int64_t per_split = (g.pixels() / std::max<int64_t>(1, wanted) + kPixels) / kPixels * kPixels;
    const unsigned splits = blocks_for(g.pixels(), per_split);
    const Scratch<float> parts(splits * size_t(count));
    const dim3 grid(tiles.x, tiles.y, splits);
    if (splits > 0) {
        if (g.c % 8 == 0 && g.k % 8 == 0)
            RG_LAUNCH((filter_gradient<T, true, ReadDy, ReadX>), grid, kThreads, 0, stream(), g, dy, x, per_split,
                      parts);
        else
            RG_LAUNCH((filter_gradient<T, false, ReadDy, ReadX>), grid, kThreads, 0, stream(), g, dy, x, per_split,
                      parts);
    }
    RG_LAUNCH(add_parts, blocks_for(count, 32), 256, 0, stream(), int(splits), g.k, g.taps(), parts, pointer<float>(dw),
              pointer<float>(db));
}

Geometry geometry(const Tensor& x, const Tensor& dy, const Tensor& dw, const Attrs& a) {
    return {int(x.extent(0)),  int(x.extent(1)),  int(x.extent(2)),  int(x.extent(3)),
            int(dy.extent(1)), int(dy.extent(2)), int(dy.extent(3)), int(dw.extent(1)),
            int(dw.extent(2)), int(a.stride),     int(a.pad)};
}

} // namespace

void conv2d_wgrad(const Call& call) {
    const Tensor &dy = call.in[0], &x = call.in[1], &dw = call.out[0];
    const Geometry g = geometry(x, dy, dw, call.attrs);
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        gradients<T>(g, Plain<T>{pointer<T>(dy)}, Plain<T>{pointer<T>(x)}, dw, call.out[1]);
    });
}

// dy is never in memory: each of the three that need it makes it from dz and y on the way in.
void conv2d_norm_grad(const Call& call) {
    const Attrs& a = call.attrs;
    const Tensor &dz = call.in[0], &y = call.in[1], &x = call.in[6], &w = call.in[10], &dx = call.out[2];
    const Geometry g = geometry(x, y, w, a);
    const Norm y_norm(call.in[2], call.in[3], call.in[4], a.epsilon, call.in[5], double(g.pixels()));
    std::optional<Norm> x_norm;
    if (call.in[7].defined()) x_norm.emplace(call.in[7], call.in[8], call.in[9], a.epsilon);
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        const NormGradient<T> dy = y_norm.gradient<T>(dz, y, a.relu);
        if (x_norm)
            gradients<T>(g, dy, x_norm->read<T>(x, a.input_relu), call.out[0], call.out[1]);
        else
            gradients<T>(g, dy, Plain<T>{pointer<T>(x)}, call.out[0], call.out[1]);
        std::optional<NormSums> sums;
        if (a.stats) sums.emplace(*x_norm, dx, x, call.in[7], a.input_relu, a.epsilon, call.out[3], call.out[4]);
        if (dx.defined()) data_gradient<T>(dy, y.shape(), w, a, call.in[11], dx, sums ? &*sums : nullptr);
    });
}

} // namespace rg::RG_GPU
