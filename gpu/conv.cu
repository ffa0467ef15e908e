// Convolution and its data gradient as implicit matrix products on tensor cores. Rows are pixels of the result, columns
// are its channels, and the sum runs over taps. A tap is one value of a filter: row, column and channel. There is no
// im2col buffer: a block gathers the pixels that it needs.
//
// A block of 4 warps computes 64 pixels x 64 channels, 32 taps at a time. While it multiplies a tile of pixels and a
// tile of filters, it loads the next two tiles into registers. During this load, readers (values.cuh) apply batch norm,
// ReLU or their gradient. bf16 operands are multiplied directly, f32 operands as three tf32 products (products.cuh). If
// the activations are bf16 and the filters f32, a separate kernel first rounds the filters, so that not every block has
// to. Results pass through shared memory: stores then cover whole memory lines, and a thread can add up a channel.
//
// If an op asks for statistics of the result, each block stores two values per channel. In the forward pass, they are a
// mean and a sum of squared deviations. In the data gradient, they are the two sums that batch norm's gradient needs.
// conv.cuh merges the values of all blocks in a fixed order.
#include "ringgrad/gpu/conv.cuh"
#include "ringgrad/gpu/kernels.h"
#include "ringgrad/gpu/norm.cuh"
#include "ringgrad/gpu/octets.cuh"
#include "ringgrad/gpu/products.cuh"

namespace rg::RG_GPU {

namespace {

constexpr int kPixels = 64, kChannels = 64, kTaps = 32, kThreads = 128;

/// A phase is a set of pixels of dx that use the same filter taps. Row i of dx gets contributions from rows
/// (i + pad - r dilation) / stride of dy, for the filter rows r for which the division is exact. Columns follow the
/// same rule. So pixels of dx belong to the same phase if their rows and columns differ by multiples of the stride;
/// there are stride.h x stride.w phases. Neighbouring taps of a phase are Geometry::tap_step apart. A block takes
/// pixels of one phase only, and skips the taps that the phase does not use. Each phase numbers its taps from 0.
struct Phase {
    int first_tap = 0;       // position of the first tap in the filter: its row * the filter's width + its column
    int row = 0, column = 0; // the pixel of dy that the first tap reads for the phase's first pixel

    /// Makes phase `number`, and replaces the extents in `g` by those of the phase.
    __device__ __forceinline__ Phase(Geometry& g, int number) {
        const int i = number / g.stride.w, j = number % g.stride.w; // the phase's first pixel
        const int r = first_of(i + g.pad.h, g.stride.h, g.dilation.h, g.r);
        const int s = first_of(j + g.pad.w, g.stride.w, g.dilation.w, g.s);
        first_tap = r * g.s + s;
        row = (i + g.pad.h - r * g.dilation.h) / g.stride.h;
        column = (j + g.pad.w - s * g.dilation.w) / g.stride.w;
        g.out_h = steps_in(g.out_h - i, g.stride.h), g.out_w = steps_in(g.out_w - j, g.stride.w);
        g.r = steps_in(g.r - r, g.tap_step.h), g.s = steps_in(g.s - s, g.tap_step.w);
    }
    Phase() = default; // the forward pass has a single phase
    /// Returns the first filter row or column for which the division is exact, or `taps` if there is none.
    static __device__ __forceinline__ int first_of(int padded, int stride, int dilation, int taps) {
        int tap = 0;
        while (tap < taps && (padded - tap * dilation) % stride != 0) ++tap;
        return tap;
    }
    /// Returns count / step, rounded up; 0 if count is negative.
    static __device__ __forceinline__ int steps_in(int count, int step) {
        return count > 0 ? (count + step - 1) / step : 0;
    }
    /// Converts a pixel's number within phase `number` (extents: g) into its number within dx (extents: full).
    static __device__ __forceinline__ int64_t pixel(const Geometry& full, const Geometry& g, int number,
                                                    int64_t pixel) {
        if (full.stride.h == 1 && full.stride.w == 1) return pixel;
        const int in_image = int(pixel % (g.out_h * g.out_w));
        const int i = in_image / g.out_w * full.stride.h + number / full.stride.w;
        const int j = in_image % g.out_w * full.stride.w + number % full.stride.w;
        return (pixel / (g.out_h * g.out_w) * full.out_h + i) * full.out_w + j;
    }
};

/// The input pixel that the first tap of a result pixel reads. It may lie outside of the image.
struct TapOrigin {
    int image, first_row, first_column; // image is -1 for a result pixel beyond the last
    /// Sets *index to the index of the input value that `tap` reads. Returns false if that value lies outside of the
    /// image, where all values count as 0.
    template <bool kDgrad>
    __device__ __forceinline__ bool locate(const Geometry& g, const Tap& tap, size_t* index) const {
        const Axes step = kDgrad ? g.dy_step : g.dilation;
        const int below = tap.r * step.h, right = tap.s * step.w;
        const int row = kDgrad ? first_row - below : first_row + below;
        const int column = kDgrad ? first_column - right : first_column + right;
        if (image < 0 || row < 0 || row >= g.in_h || column < 0 || column >= g.in_w) return false;
        *index = ((size_t(image) * g.in_h + row) * g.in_w + column) * g.in_c + tap.c;
        return true;
    }
};

/// 8 consecutive values of a filter.
template <class T>
using EightOf = typename OctetReader<Plain<T>>::Loaded;

/// Loads the filter values of 8 consecutive taps for result channel o, beginning with `tap`. kWhole: in_c is a multiple
/// of 8, so these are 8 channels of one place. w holds filters [out_c][rows][columns][in_c]; for the data gradient, a
/// kernel has exchanged their channels. Values beyond the last tap or channel do not matter: loads of other places
/// replace them, since the compiler would wait for each load within a branch.
template <bool kDgrad, bool kWhole, class T>
__device__ __forceinline__ EightOf<T> load_filter(const Geometry& full, const Geometry& g, const Phase& phase,
                                                  const T* w, int o, Tap tap) {
    const auto index = [&] {
        const int place =
            kDgrad ? tap.r * g.tap_step.h * full.s + tap.s * g.tap_step.w + phase.first_tap : tap.r * g.s + tap.s;
        return (min(o, g.out_c - 1) * full.r * full.s + (tap.r < g.r ? place : 0)) * g.in_c + tap.c;
    };
    if constexpr (kWhole) {
        return OctetReader<Plain<T>>({w}, 0).load(size_t(index()));
    } else {
        Octet octet;
        RG_UNROLL
        for (float& v : octet.v) {
            v = load(w + index());
            tap.next<false>(g.in_c, g.s);
        }
        if constexpr (std::is_same_v<T, bf16>)
            return pack_8(octet.v);
        else
            return octet;
    }
}

/// Number of values from the start of a tile's row to the start of the next. A padding of 16 bytes puts 8
/// neighbouring rows into different banks.
template <class T>
constexpr int kPitch = kTaps + 16 / int(sizeof(T));

// ---- the products of a warp: 32 x 32 results over 32 taps ---------------------------------------------------------

__device__ __forceinline__ void multiply(const bf16* a, const bf16* b, float (&sum)[2][4][4]) {
    constexpr int kLine = kPitch<bf16>;
    const int lane = int(threadIdx.x) % 32;
    for (int t = 0; t < kTaps; t += 16) {
        uint32_t rows[2][4], columns[2];
        RG_UNROLL
        for (int m = 0; m < 2; ++m) ldmatrix_x4(rows[m], a + (16 * m + lane % 16) * kLine + t + lane / 16 * 8);
        RG_UNROLL
        for (int n = 0; n < 4; ++n) {
            ldmatrix_x2(columns, b + (8 * n + lane % 8) * kLine + t + lane / 8 % 2 * 8);
            RG_UNROLL
            for (int m = 0; m < 2; ++m) mma_bf16_16x8x16(sum[m][n], rows[m], columns);
        }
    }
}

__device__ __forceinline__ void multiply(const float* a, const float* b, float (&sum)[2][4][4]) {
    constexpr int kLine = kPitch<float>;
    const int group = int(threadIdx.x) % 32 / 4, t0 = int(threadIdx.x) % 4;
    for (int t = 0; t < kTaps; t += 8) {
        float rows[2][4], columns[2];
        RG_UNROLL
        for (int m = 0; m < 2; ++m) RG_UNROLL
        for (int i = 0; i < 4; ++i) rows[m][i] = a[(16 * m + group + i % 2 * 8) * kLine + t + t0 + i / 2 * 4];
        RG_UNROLL
        for (int n = 0; n < 4; ++n) {
            RG_UNROLL
            for (int i = 0; i < 2; ++i) columns[i] = b[(8 * n + group) * kLine + t + t0 + 4 * i];
            RG_UNROLL
            for (int m = 0; m < 2; ++m) mma_f32_16x8x8(sum[m][n], rows[m], columns);
        }
    }
}

// ---- the kernels ---------------------------------------------------------------------------------------------------

/// The minimum of blocks per SM for the launch bounds; 0 sets none. A larger one makes the compiler spill registers.
template <class T, bool kDgrad>
constexpr int kBlocks = !kDgrad                   ? 0
                        : std::is_same_v<T, bf16> ? 4
                                                  : 3;

/// The body of conv2d_forward_kernel and conv2d_dgrad_kernel, which have two names so that profiles show the direction.
template <class T, bool kDgrad, bool kWhole, class Reader>
__device__ __forceinline__ void convolve(const Geometry& full, const Reader& reader, const T* __restrict__ w,
                                         const Epilogue<T>& e, T* __restrict__ out) {
    constexpr int kLine = kPitch<T>;
    SHARED(T, pixels, kPixels * kLine);
    SHARED(T, filters, kChannels * kLine);
    SHARED(float, results, kPixels*(kChannels + 1));
    const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32;
    Geometry g = full;
    const Phase phase = kDgrad ? Phase(g, int(blockIdx.z)) : Phase();
    const int64_t first_pixel = int64_t(blockIdx.x) * kPixels;
    // The grid has enough blocks for the largest phase. So a block of a smaller phase may have no pixels; its sums are
    // 0 then. A phase may also have no taps.
    const int taps = kDgrad && first_pixel >= g.pixels() ? 0 : g.taps();
    const int first_channel = int(blockIdx.y) * kChannels;

    // For each tile, this thread loads 8 taps, beginning with 8 * (thread % 4), of the tile's pixels thread / 4 and
    // thread / 4 + 32, and of the filters with these numbers.
    TapOrigin origins[2] = {{-1, 0, 0}, {-1, 0, 0}};
    RG_UNROLL
    for (int i = 0; i < 2; ++i) {
        const int64_t pixel = first_pixel + thread / 4 + 32 * i;
        if (pixel >= g.pixels()) continue; // without pixels, the divisors below may be 0
        const int in_image = int(pixel % (g.out_h * g.out_w));
        const int row = in_image / g.out_w, column = in_image % g.out_w;
        origins[i] = {int(pixel / (g.out_h * g.out_w)), kDgrad ? row + phase.row : row * g.stride.h - g.pad.h,
                      kDgrad ? column + phase.column : column * g.stride.w - g.pad.w};
    }
    using Pixels = Source<kWhole, Reader>;
    typename Pixels::Loaded next_pixels[2];
    EightOf<T> next_filters[2];
    Tap tap(taps > 0 ? g.in_c : 1, taps > 0 ? g.s : 1, thread % 4 * 8);
    int pixels_channel = 0; // the first channel of next_pixels
    bool inside[2] = {};    // true if next_pixels lie in the image; otherwise, they count as 0
    const auto fetch = [&] {
        pixels_channel = tap.c;
        const Pixels source(reader, pixels_channel);
        RG_UNROLL
        for (int i = 0; i < 2; ++i) {
            next_filters[i] = load_filter<kDgrad, kWhole>(full, g, phase, w, first_channel + thread / 4 + 32 * i, tap);
            size_t index;
            if constexpr (kWhole) {
                inside[i] = tap.r < g.r && origins[i].template locate<kDgrad>(g, tap, &index);
                next_pixels[i] = source.load(inside[i] ? index : 0);
            } else {
                inside[i] = true;
                Tap next = tap;
                RG_UNROLL
                for (float& v : next_pixels[i].v) {
                    v = next.r < g.r && origins[i].template locate<kDgrad>(g, next, &index)
                            ? reader.value(index, next.c)
                            : 0;
                    next.template next<false>(g.in_c, g.s);
                }
            }
        }
        tap.advance(kTaps, g.in_c, g.s);
    };

    float sum[2][4][4] = {};
    const int row = warp / 2 * 32, column = warp % 2 * 32; // first row and column of this warp's results
    if (taps > 0) fetch();
    for (int first = 0; first < taps; first += kTaps) {
        const Pixels source(reader, pixels_channel);
        __syncthreads(); // all warps have read the previous tiles
        RG_UNROLL
        for (int i = 0; i < 2; ++i) {
            const int place = (thread / 4 + 32 * i) * kLine + thread % 4 * 8;
            store_octet(pixels + place, choose(inside[i], source.transform(next_pixels[i]), 0));
            store_octet(filters + place, next_filters[i]);
        }
        __syncthreads();
        if (first + kTaps < taps) fetch();
        multiply(pixels + row * kLine, filters + column * kLine, sum);
    }

    RG_UNROLL
    for (int m = 0; m < 2; ++m) RG_UNROLL
    for (int n = 0; n < 4; ++n) RG_UNROLL
    for (int i = 0; i < 4; ++i) {
        const int o = column + 8 * n + lane % 4 * 2 + i % 2;
        const float bias = e.bias && first_channel + o < g.out_c ? e.bias[first_channel + o] : 0;
        results[(row + 16 * m + lane / 4 + i / 2 * 8) * (kChannels + 1) + o] = sum[m][n][i] + bias;
    }
    __syncthreads();
    const int channel = first_channel + thread % 64;
    const int count = int(min(long(kPixels), long(g.pixels() - first_pixel)));
    TwoSums terms;
    if (channel < g.out_c)
        for (int i = thread / 64; i < count; i += 2) {
            const int64_t pixel = kDgrad ? Phase::pixel(full, g, int(blockIdx.z), first_pixel + i) : first_pixel + i;
            const size_t index = size_t(pixel * g.out_c + channel);
            float v = results[i * (kChannels + 1) + thread % 64];
            if constexpr (kDgrad) {
                if (e.residual) v += load(e.residual + index);
                if (e.partials) e.terms.add(as_stored(v, T{}), index, channel, terms);
            }
            store(out + index, e.relu ? relu_of(v) : v);
        }
    if (!e.partials) return;
    if constexpr (kDgrad) {
        __syncthreads(); // all threads have read the results
        if (thread >= 64) results[thread] = terms.first, results[thread + 64] = terms.second;
        __syncthreads();
    }
    if (thread >= 64 || channel >= g.out_c) return;
    float* const partial = e.partials + (size_t(blockIdx.z) * gridDim.x + blockIdx.x) * 2 * g.out_c + channel;
    if constexpr (kDgrad) {
        partial[0] = terms.first + results[thread + 64];
        partial[g.out_c] = terms.second + results[thread + 128];
    } else {
        float mean = 0, squares = 0;
        for (int i = 0; i < count; ++i) mean += results[i * (kChannels + 1) + thread];
        mean /= float(count);
        for (int i = 0; i < count; ++i) {
            const float d = results[i * (kChannels + 1) + thread] - mean;
            squares += d * d;
        }
        partial[0] = mean, partial[g.out_c] = squares;
    }
}

template <class T, bool kWhole, class Reader>
__global__ void __launch_bounds__(kThreads, kBlocks<T, false>)
    conv2d_forward_kernel(Geometry g, Reader reader, const T* __restrict__ w, Epilogue<T> e, T* __restrict__ out) {
    convolve<T, false, kWhole>(g, reader, w, e, out);
}

template <class T, bool kWhole, class Reader>
__global__ void __launch_bounds__(kThreads, kBlocks<T, true>)
    conv2d_dgrad_kernel(Geometry g, Reader reader, const T* __restrict__ w, Epilogue<T> e, T* __restrict__ out) {
    convolve<T, true, kWhole>(g, reader, w, e, out);
}

/// A functor that returns the number of pixels of a block in the forward pass.
struct BlockPixels {
    int64_t total;
    __device__ double operator()(int block) const {
        return double(min(long(kPixels), long(total - int64_t(block) * kPixels)));
    }
};

__global__ void conv2d_round_filters_kernel(int count, const float* w, bf16* filters) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) store(filters + i, w[i]);
}

/// Exchanges the channels of filters: w is [k][places][c], and `filters` [c][places][k]. A place is a row and a column.
template <class T>
__global__ void conv2d_dgrad_filters_kernel(int count, int places, int c, int k, const T* w, T* filters) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) filters[i] = w[(i % k * places + i / k % places) * c + i / k / places];
}

/// Folds the batch norm after a convolution into the filters and the bias. `count` is the number of values in all
/// filters, `size` the number in one filter.
template <class T>
__global__ void conv2d_norm_fold_kernel(int count, int size, const float* w, const float* bias, const float* scale,
                                        const float* shift, T* filters, float* biases) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) store(filters + i, w[i] * scale[i / size]);
    if (i < count / size) biases[i] = (bias ? bias[i] * scale[i] : 0) + shift[i];
}

/// Provides filters of type T, aligned to 16 bytes: the given ones if they have type T, else a rounded copy.
template <class T>
class Filters {
public:
    Filters(const GivenFilters& w, int count) : copy_(needs_copy(w) ? size_t(count) : 0) {
        if constexpr (std::is_same_v<T, bf16>) {
            data_ = w.rounded;
            if (!needs_copy(w)) return;
            RG_LAUNCH(conv2d_round_filters_kernel, blocks_for(count, 256), 256, 0, stream(), count, w.f32, copy_);
            data_ = copy_;
        } else {
            data_ = w.f32;
        }
    }
    operator const T*() const { return data_; }

private:
    static bool needs_copy(const GivenFilters& w) { return std::is_same_v<T, bf16> && !w.rounded; }
    Scratch<T> copy_;
    const T* data_;
};

/// Runs a convolution or its data gradient, and the reductions. Uses the Hopper kernel if enabled for this case.
template <bool kDgrad, class T, class Reader>
void run_conv2d(const Geometry& g, const Reader& reader, const GivenFilters& given, Epilogue<T> e, T* out,
                const ChannelReductions& reductions) {
    if constexpr (std::is_same_v<T, bf16>)
        if (convolve_on_hopper(g, kDgrad, reader, given, e, out, reductions)) return;
    const Filters<T> filters(given, g.taps() * g.out_c);
    const T* w = filters;
    const Axes step = kDgrad ? g.stride : Axes(1); // there are step.h x step.w phases; phase 0 has the most pixels
    const int64_t pixels = int64_t(g.images) * blocks_for(g.out_h, step.h) * blocks_for(g.out_w, step.w);
    const unsigned blocks = blocks_for(pixels, kPixels), phases = unsigned(step.h * step.w);
    const Scratch<float> partials(reductions ? size_t(blocks) * phases * 2 * size_t(g.out_c) : 0);
    if (reductions) e.partials = partials;
    if (reductions.sums) e.terms = reductions.sums->terms<T>();
    const dim3 grid(blocks, blocks_for(g.out_c, kChannels), phases);
    const int places = g.r * g.s, count = kDgrad ? places * g.in_c * g.out_c : 0;
    const Scratch<T> exchanged(static_cast<size_t>(count));
    if (count > 0) {
        RG_LAUNCH(conv2d_dgrad_filters_kernel<T>, blocks_for(count, 256), 256, 0, stream(), count, places, g.out_c,
                  g.in_c, w, exchanged);
        w = exchanged;
    }
    const auto launch_kernel = [&](auto whole) {
        constexpr bool kWhole = decltype(whole)::value;
        if constexpr (kDgrad)
            RG_LAUNCH((conv2d_dgrad_kernel<T, kWhole, Reader>), grid, kThreads, 0, stream(), g, reader, w, e, out);
        else
            RG_LAUNCH((conv2d_forward_kernel<T, kWhole, Reader>), grid, kThreads, 0, stream(), g, reader, w, e, out);
    };
    if (blocks > 0) {
        if (g.in_c % 8 == 0)
            launch_kernel(std::true_type{});
        else
            launch_kernel(std::false_type{});
    }
    reductions.finish(partials, blocks * phases, BlockPixels{g.pixels()}, g);
}

} // namespace

// If the op also applies batch norm to the result, that is folded into the filters and the bias. If the op also applies
// max pooling, that runs as a separate kernel.
void conv2d(const Call& call) {
    using O = Conv2dOp;
    const auto& a = call.attrs.as<O>();
    if (a.conv.groups > 1) return conv2d_in_groups(call);
    if (linear_forward(call)) return;
    const Tensor &x = call.in[O::x], &w = call.in[O::w], &y = call.out[O::y];
    const auto windows = [&](int axis, int64_t stride, int64_t pad, int64_t dilation) {
        return (x.extent(axis) + 2 * pad - (w.extent(axis) - 1) * dilation - 1) / stride + 1;
    };
    const Shape plain{x.extent(0), windows(1, a.conv.stride.h, a.conv.pad.h, a.conv.dilation.h),
                      windows(2, a.conv.stride.w, a.conv.pad.w, a.conv.dilation.w), w.extent(0)};
    const Geometry g = geometry_of(x.shape(), plain, w, a.conv);
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        with_reader<T>(x, call.in.subspan(O::x_stats, 3), a.x_norm, [&](const auto& reader) {
            if (!call.in[O::y_stats].defined())
                return run_conv2d<false>(
                    g, reader, w, {.bias = pointer<float>(call.in[O::bias])}, pointer<T>(y),
                    {.stats = a.with_stats ? call.out[O::stats] : Tensor(),
                     .after = {pointer<float>(call.in[O::y_gamma]), pointer<float>(call.in[O::y_beta]),
                               a.y_norm.epsilon, pointer<float>(call.in[O::running]), double(a.momentum)}});
            const Norm norm(call.in.subspan(O::y_stats, 3), a.y_norm);
            const int count = int(w.numel());
            const bool pooled = a.pool > 1;
            const Scratch<float> bias(size_t(g.out_c));
            const Scratch<T> unpooled(pooled ? size_t(plain.numel()) : 0);
            const Scratch<T> filters(static_cast<size_t>(count));
            RG_LAUNCH(conv2d_norm_fold_kernel<T>, blocks_for(count, 256), 256, 0, stream(), count, count / g.out_c,
                      pointer<float>(w), pointer<float>(call.in[O::bias]), norm.scale(), norm.shift(), filters, bias);
            run_conv2d<false>(g, reader, filters.data(), {.bias = bias, .relu = a.y_norm.relu},
                              pooled ? unpooled.data() : pointer<T>(y), {});
            if (pooled) max_pool(unpooled.data(), plain, int(a.pool), pointer<T>(y));
        });
    });
}

template <class T, class Reader>
void data_gradient(const Reader& dy, const Shape& dy_shape, const Tensor& w, const Conv& conv, const Tensor& addend,
                   const Tensor& dx, const NormSums* sums) {
    run_conv2d<true>(geometry_of(dy_shape, dx.shape(), w, conv), dy, w, {.residual = pointer<T>(addend)},
                     pointer<T>(dx), {{}, sums});
}
#define RG_DATA_GRADIENT(T, Reader)                                                                                    \
    template void data_gradient<T>(const Reader<T>&, const Shape&, const Tensor&, const Conv&, const Tensor&,          \
                                   const Tensor&, const NormSums*);
RG_DATA_GRADIENT(float, Plain)
RG_DATA_GRADIENT(float, NormGradient)
RG_DATA_GRADIENT(bf16, Plain)
RG_DATA_GRADIENT(bf16, NormGradient)

} // namespace rg::RG_GPU
