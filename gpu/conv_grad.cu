// The weight gradient of a convolution as an implicit matrix product. Rows are filters, columns are taps (values of a
// filter), and the sum runs over pixels of y. The pixels are split between blocks. A second kernel adds their sums in a
// fixed order, so that every run gives the same bits. An additional last tap, whose x is 1, gives the bias gradient.
//
// A block of 4 warps computes 32 filters x 128 taps, 32 pixels at a time. Both operands are in shared memory with one
// row per pixel. The tensor cores need them transposed: ldmatrix does this for bf16, and single loads do it for f32.
// f32 operands are multiplied as three tf32 products (products.cuh). A thread loads the same octet of channels of all
// its pixels, so it keeps the coefficients of their transformation in registers (octets.cuh).
#include "ringgrad/gpu/conv.cuh"
#include "ringgrad/gpu/divisor.cuh"
#include "ringgrad/gpu/kernels.h"
#include "ringgrad/gpu/octets.cuh"
#include "ringgrad/gpu/products.cuh"

#include <optional>

namespace rg::RG_GPU {

namespace {

constexpr int kPixels = 32, kThreads = 128;
/// The desired number of blocks: three for each of the 132 SMs of an H100. The blocks of a tile of the result split the
/// pixels. A tile gets at most one block per 512 pixels (rounded up), since all blocks' sums are added.
constexpr int64_t kBlocks = 396, kPixelsPerBlock = 512;

/// The operands whose number of channels is a multiple of 8.
enum class Whole { both, dy, none };

/// The tile of results of a block. If x has few channels, there are few taps.
template <Whole kWhole>
struct Tile {
    static constexpr int kFilters = kWhole == Whole::both ? 32 : 64, kTaps = 4096 / kFilters;
    // Values from the start of a pixel's row to that of the next. The padding puts 8 neighbouring rows into different
    // banks.
    static constexpr int kDyPitch = kFilters + 8, kXPitch = kTaps + 8;
};

struct PixelDivisors {
    Divisor image, row; // pixels of an image and of a row
};

/// The octet of a tile's rows that a thread loads, and its pixels.
template <int kValues>
struct Share {
    static constexpr int kOctets = kValues / 8, kCount = kPixels * kOctets / kThreads;
    static __device__ __forceinline__ int first() { return int(threadIdx.x) % kOctets * 8; }
    static __device__ __forceinline__ int pixel(int i) { return int(threadIdx.x) / kOctets + i * (kThreads / kOctets); }
};

/// A thread's part of dy: 8 filters of some pixels. load() starts the loads of 32 pixels from pixel `from` on. store()
/// transforms and stores them; pixels from `end` on, and filters beyond the last, are 0. There, load() reads the first
/// value instead: with a branch around a load, the compiler would wait for one load before the next.
template <bool kWhole, int kFilters, class Reader>
class DyLoader {
public:
    __device__ __forceinline__ DyLoader(const Geometry& g, const Reader& reader, int first_filter)
        : count_(g.out_c), filter_(first_filter + Mine::first()), source_(reader, filter_ < count_ ? filter_ : 0) {}
    __device__ __forceinline__ void load(int from, int end) {
        RG_UNROLL
        for (int i = 0; i < Mine::kCount; ++i) {
            const int pixel = from + Mine::pixel(i);
            inside_[i] = pixel < end && filter_ < count_;
            const size_t index = inside_[i] ? size_t(pixel) * count_ + filter_ : 0;
            if constexpr (kWhole) {
                loaded_[i] = source_.load(index);
            } else {
                RG_UNROLL
                for (int j = 0; j < 8; ++j)
                    loaded_[i].v[j] =
                        inside_[i] && filter_ + j < count_ ? source_.reader.value(index + j, filter_ + j) : 0;
            }
        }
    }
    template <class T>
    __device__ __forceinline__ void store(T* tile, int pitch) const {
        RG_UNROLL
        for (int i = 0; i < Mine::kCount; ++i)
            store_octet(tile + Mine::pixel(i) * pitch + Mine::first(),
                        choose(inside_[i], source_.transform(loaded_[i]), 0));
    }

private:
    using Mine = Share<kFilters>;
    int count_, filter_;
    Source<kWhole, Reader> source_;
    typename Source<kWhole, Reader>::Loaded loaded_[Mine::kCount];
    bool inside_[Mine::kCount] = {}; // true if the values of loaded_ count
};

/// A thread's part of x: the values that 8 taps multiply for some pixels of y. Taps beyond the filter read 1: the first
/// of them is the tap of the bias, and the rest is never stored.
template <bool kWhole, int kTaps, class Reader>
class XLoader {
public:
    __device__ __forceinline__ XLoader(const Geometry& geometry, const PixelDivisors& divisors, const Reader& reader,
                                       int first_tap)
        : g(geometry),
          divisors_(divisors),
          tap_(g.in_c, g.s, first_tap + Mine::first()),
          source_(reader, tap_.c),
          beyond_(float(tap_.r >= g.r)) {}
    __device__ __forceinline__ void load(int from, int end) {
        RG_UNROLL
        for (int i = 0; i < Mine::kCount; ++i) {
            const int pixel = min(from + Mine::pixel(i), end - 1); // x beyond does not matter, since dy is 0 there
            const int image = pixel / divisors_.image, in_image = pixel % divisors_.image;
            const int row = in_image / divisors_.row, column = in_image % divisors_.row;
            size_t index;
            if constexpr (kWhole) {
                inside_[i] = locate(image, row, column, tap_, &index);
                loaded_[i] = source_.load(inside_[i] ? index : 0);
            } else {
                inside_[i] = true;
                Tap tap = tap_;
                RG_UNROLL
                for (int j = 0; j < 8; ++j) {
                    loaded_[i].v[j] = locate(image, row, column, tap, &index) ? source_.reader.value(index, tap.c)
                                                                              : float(tap.r >= g.r);
                    tap.next<false>(g.in_c, g.s);
                }
            }
        }
    }
    template <class T>
    __device__ __forceinline__ void store(T* tile, int pitch) const {
        RG_UNROLL
        for (int i = 0; i < Mine::kCount; ++i)
            store_octet(tile + Mine::pixel(i) * pitch + Mine::first(),
                        choose(inside_[i], source_.transform(loaded_[i]), beyond_));
    }

private:
    using Mine = Share<kTaps>;
    /// Sets *index to that of the value that `tap` reads. Returns false if there is none.
    __device__ __forceinline__ bool locate(int image, int i, int j, const Tap& tap, size_t* index) const {
        const int row = i * g.stride.h - g.pad.h + tap.r * g.dilation.h;
        const int column = j * g.stride.w - g.pad.w + tap.s * g.dilation.w;
        *index = (size_t(image * g.in_h + row) * g.in_w + column) * g.in_c + tap.c;
        return tap.r < g.r && row >= 0 && row < g.in_h && column >= 0 && column < g.in_w;
    }
    const Geometry& g;
    const PixelDivisors& divisors_;
    Tap tap_;
    Source<kWhole, Reader> source_;
    typename Source<kWhole, Reader>::Loaded loaded_[Mine::kCount];
    bool inside_[Mine::kCount] = {}; // true if the values of loaded_ count
    float beyond_;                   // replaces the others: 1 for the bias
};

template <class Tile>
__device__ __forceinline__ void multiply(const bf16* dy, const bf16* x, float (&sum)[2][4][4]) {
    const int lane = int(threadIdx.x) % 32;
    for (int t = 0; t < kPixels; t += 16) {
        uint32_t rows[2][4], columns[2];
        RG_UNROLL
        for (int m = 0; m < 2; ++m)
            ldmatrix_x4_trans(rows[m],
                              dy + (t + lane % 8 + lane / 16 * 8) * Tile::kDyPitch + 16 * m + lane / 8 % 2 * 8);
        RG_UNROLL
        for (int n = 0; n < 4; ++n) {
            ldmatrix_x2_trans(columns, x + (t + lane % 16) * Tile::kXPitch + 8 * n);
            RG_UNROLL
            for (int m = 0; m < 2; ++m) mma_bf16_16x8x16(sum[m][n], rows[m], columns);
        }
    }
}

template <class Tile>
__device__ __forceinline__ void multiply(const float* dy, const float* x, float (&sum)[2][4][4]) {
    const int group = int(threadIdx.x) % 32 / 4, t0 = int(threadIdx.x) % 4;
    for (int t = 0; t < kPixels; t += 8) {
        float rows[2][4], columns[2];
        RG_UNROLL
        for (int m = 0; m < 2; ++m) RG_UNROLL
        for (int i = 0; i < 4; ++i) rows[m][i] = dy[(t + t0 + i / 2 * 4) * Tile::kDyPitch + 16 * m + group + i % 2 * 8];
        RG_UNROLL
        for (int n = 0; n < 4; ++n) {
            RG_UNROLL
            for (int i = 0; i < 2; ++i) columns[i] = x[(t + t0 + 4 * i) * Tile::kXPitch + 8 * n + group];
            RG_UNROLL
            for (int m = 0; m < 2; ++m) mma_f32_16x8x8(sum[m][n], rows[m], columns);
        }
    }
}

/// Stores each block's sums over its pixels to partials [splits][filters][taps + 1]; a split is a range of pixels. The
/// launch bound keeps the compiler from spilling registers to get one block more.
template <class T, Whole kWhole, class DyReader, class XReader>
__global__ void __launch_bounds__(kThreads, std::is_same_v<T, bf16> ? 3 : 2)
    conv2d_wgrad_kernel(Geometry g, PixelDivisors divisors, DyReader dy_reader, XReader x_reader, int pixels_per_split,
                        float* __restrict__ partials) {
    using Block = Tile<kWhole>;
    SHARED(T, dy, kPixels * Block::kDyPitch);
    SHARED(T, x, kPixels * Block::kXPitch);
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
    const int first_filter = int(blockIdx.y) * Block::kFilters, first_tap = int(blockIdx.x) * Block::kTaps;
    const int begin = int(blockIdx.z) * pixels_per_split, end = min(begin + pixels_per_split, int(g.pixels()));
    DyLoader<kWhole != Whole::none, Block::kFilters, DyReader> next_dy(g, dy_reader, first_filter);
    XLoader<kWhole == Whole::both, Block::kTaps, XReader> next_x(g, divisors, x_reader, first_tap);

    float sum[2][4][4] = {};
    // First row and column of this warp's results
    constexpr int kWarpRows = Block::kFilters / 32;
    const int row = warp % kWarpRows * 32, column = warp / kWarpRows * 32;
    next_dy.load(begin, end), next_x.load(begin, end);
    for (int from = begin; from < end; from += kPixels) {
        __syncthreads(); // all warps have read the previous tiles
        next_dy.store(dy, Block::kDyPitch), next_x.store(x, Block::kXPitch);
        __syncthreads();
        if (from + kPixels < end) next_dy.load(from + kPixels, end), next_x.load(from + kPixels, end);
        multiply<Block>(dy + row, x + column, sum);
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
    RG_CHECK(g.pixels() < INT32_MAX - kPixels, "conv2d_grad: expected fewer than 2^31 pixels, got ", g.pixels());
    if constexpr (std::is_same_v<T, bf16>)
        if (wgrad_on_hopper(g, dy, x, dw, db)) return;
    const int64_t count = int64_t(g.out_c) * (g.taps() + 1);
    const auto launch_kernel = [&](auto whole) {
        constexpr Whole kWhole = decltype(whole)::value;
        const dim3 tiles(blocks_for(g.taps() + 1, Tile<kWhole>::kTaps), blocks_for(g.out_c, Tile<kWhole>::kFilters));
        const int64_t max_splits = std::min(std::max<int64_t>(1, kBlocks / (int64_t(tiles.x) * tiles.y)),
                                            (g.pixels() + kPixelsPerBlock - 1) / kPixelsPerBlock);
        const int64_t per_split = (g.pixels() / std::max<int64_t>(1, max_splits) + kPixels) / kPixels * kPixels;
        const unsigned splits = blocks_for(g.pixels(), per_split);
        const Scratch<float> partials(splits * size_t(count));
        const PixelDivisors divisors{Divisor(std::max(1, g.out_h * g.out_w)), Divisor(std::max(1, g.out_w))};
        if (splits > 0)
            RG_LAUNCH((conv2d_wgrad_kernel<T, kWhole, DyReader, XReader>), dim3(tiles.x, tiles.y, splits), kThreads, 0,
                      stream(), g, divisors, dy, x, int(per_split), partials);
        reduce_wgrad(g, int(splits), partials, dw, db);
    };
    if (g.out_c % 8 != 0)
        launch_kernel(std::integral_constant<Whole, Whole::none>{});
    else if (g.in_c % 8 != 0)
        launch_kernel(std::integral_constant<Whole, Whole::dy>{});
    else
        launch_kernel(std::integral_constant<Whole, Whole::both>{});
}

} // namespace

void reduce_wgrad(const Geometry& g, int count, const float* partials, const Tensor& dw, const Tensor& db) {
    RG_LAUNCH(conv2d_wgrad_reduce_kernel, blocks_for(int64_t(g.out_c) * (g.taps() + 1), 32), 256, 0, stream(), count,
              g.out_c, g.taps(), partials, pointer<float>(dw), pointer<float>(db));
}

// If y is given, a batch norm follows the convolution, and dy is the gradient with respect to its result. The kernels
// then compute the gradient with respect to y, the result of the convolution, while they load dy and y.
void conv2d_grad(const Call& call) {
    using O = Conv2dGradOp;
    const auto& a = call.attrs.as<O>();
    if (a.conv.groups > 1) return conv2d_grad_in_groups(call);
    if (linear_grad(call)) return;
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
        if (a.with_sums)
            sums.emplace(*x_norm, dx, x, call.out[O::x_dgamma], call.out[O::x_dbeta], call.out[O::x_sums]);
        if (a.data)
            data_gradient<T>(reader, y.shape(), w, a.conv, call.in[O::addend], dx, sums ? &*sums : nullptr);
    });
}

} // namespace rg::RG_GPU
