// Convolution and its data gradient as products of matrices, on tensor cores: rows are pixels of the result, columns
// its channels, and the sum runs over taps. Nothing is unrolled in memory: a block gathers the pixels that it needs.
//
// A block of 4 warps makes 64 pixels x 64 channels, 32 taps at a time: while one set of tiles is multiplied, the next
// is on its way in registers, where batch norm, ReLU or the gradient past them are applied (values.cuh). bf16 operands
// are multiplied as they are; f32 ones as three products of tf32 parts (products.cuh). Filters come in the type of the
// activations, so that their rounding is not every block's work. The tile of results goes through shared memory, for
// whole lines of y and for the statistics: per block and channel a mean and a sum of squared deviations, which conv.cuh
// merges in a fixed order.
#include "gpu/conv.cuh"
#include "gpu/kernels.h"
#include "gpu/norm.cuh"
#include "gpu/products.cuh"

namespace rg::RG_GPU {

namespace {

constexpr int kPixels = 64, kChannels = 64, kTaps = 32, kThreads = 128;

/// In the gradient, dx[i j] meets dy[(i + pad - r) / stride] where that is whole: pixels that are a stride apart meet
/// the same taps, and these are a stride apart, too. So blocks take the pixels of one phase of stride x stride, and
/// nothing that the stride passes over is multiplied. Pixels and taps of a phase are counted on their own.
struct Phase {
    int stride = 1;
    int r = 0, s = 0;        // its first tap
    int row = 0, column = 0; // where its first pixel meets that in dy

    /// `g` becomes that of the phase.
    __device__ __forceinline__ Phase(Geometry& g, int number) : stride(g.stride) {
        const int i = number / stride, j = number % stride; // its first pixel
        r = (i + g.pad) % stride, s = (j + g.pad) % stride;
        row = (i + g.pad) / stride, column = (j + g.pad) / stride;
        g.out_h = every(g.out_h - i), g.out_w = every(g.out_w - j);
        g.r = every(g.r - r), g.s = every(g.s - s);
    }
    Phase() = default; // the forward pass has one
    __device__ __forceinline__ int every(int count) const { return count > 0 ? (count + stride - 1) / stride : 0; }
    /// Of all pixels, the phase's `pixel`.
    __device__ __forceinline__ int64_t pixel(const Geometry& all, const Geometry& g, int64_t pixel) const {
        if (stride == 1) return pixel;
        const int in_image = int(pixel % (g.out_h * g.out_w));
        const int i = (row + in_image / g.out_w) * stride + r - g.pad;
        const int j = (column + in_image % g.out_w) * stride + s - g.pad;
        return (pixel / (g.out_h * g.out_w) * all.out_h + i) * all.out_w + j;
    }
};

/// The input pixel that the first tap of a result pixel meets, and from there those of the others.
struct Place {
    int image, first_row, first_column; // image -1: beyond the last pixel
    template <bool kGradient>
    __device__ __forceinline__ bool meets(const Geometry& g, const Tap& tap, size_t* at) const {
        const int row = kGradient ? first_row - tap.r : first_row + tap.r;
        const int column = kGradient ? first_column - tap.s : first_column + tap.s;
        if (image < 0 || row < 0 || row >= g.in_h || column < 0 || column >= g.in_w) return false;
        *at = ((size_t(image) * g.in_h + row) * g.in_w + column) * g.in_c + tap.c;
        return true;
    }
};

/// 8 consecutive taps of a pixel, from tap `first` on. kWhole: in_c is a multiple of 8, so that they are 8 channels.
template <bool kGradient, bool kWhole, class Read>
__device__ __forceinline__ void gather(const Geometry& g, const Read& read, const Place& place, int first,
                                       float (&v)[8]) {
    Tap tap(g.in_c, g.s, first);
    size_t at;
    if constexpr (kWhole) {
        if (first < g.taps() && place.meets<kGradient>(g, tap, &at))
            read.values(at, tap.c, v);
        else
            clear(v);
    } else {
        RG_UNROLL
        for (int i = 0; i < 8; ++i) {
            v[i] = first + i < g.taps() && place.meets<kGradient>(g, tap, &at) ? read.value(at, tap.c) : 0;
            tap.next<false>(g.in_c, g.s);
        }
    }
}

/// The filter values of result channel o and 8 taps from t on. w [k r s c]: forward k is made, in the gradient c.
template <bool kGradient, bool kWhole, class T>
__device__ __forceinline__ void filter(const Geometry& all, const Geometry& g, const Phase& phase, const T* w, int o,
                                       int t, Pair<T> (&v)[4]) {
    if constexpr (std::is_same_v<T, bf16> && kWhole && !kGradient) {
        auto eight = make_uint4(0, 0, 0, 0);
        if (o < g.out_c && t < g.taps()) eight = *reinterpret_cast<const uint4*>(w + o * g.taps() + t);
        v[0] = eight.x, v[1] = eight.y, v[2] = eight.z, v[3] = eight.w;
        return;
    }
    Tap tap(g.in_c, g.s, t);
    const auto next = [&](int i) {
        const int r = phase.r + tap.r * phase.stride, s = phase.s + tap.s * phase.stride;
        const int at = kGradient ? ((tap.c * all.r + r) * all.s + s) * g.out_c + o : o * g.taps() + t + i;
        tap.next<kWhole>(g.in_c, g.s);
        return o < g.out_c && t + i < g.taps() ? w[at] : T{};
    };
    RG_UNROLL
    for (int i = 0; i < 4; ++i) {
        const T first = next(2 * i);
        v[i] = pair_of(first, next(2 * i + 1));
    }
}

/// Values from one row of a tile to the next: 16 bytes more than the row, so that rows begin in different banks.
template <class T>
constexpr int kPitch = kTaps + 16 / int(sizeof(T));

// ---- a warp's products: 32 x 32 results of 32 taps -----------------------------------------------------------------

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

// ---- the kernel ----------------------------------------------------------------------------------------------------

/// Blocks that a multiprocessor is to hold; 0: as the compiler likes. For one more it would spill registers.
template <class T, bool kGradient>
constexpr int kBlocks = !kGradient                ? 0
                        : std::is_same_v<T, bf16> ? 4
                                                  : 3;

template <class T, bool kGradient, bool kWhole, class Read>
__global__ void __launch_bounds__(kThreads, kBlocks<T, kGradient>)
    convolve(Geometry all, Read read, const T* __restrict__ w, Epilogue<T> e, T* __restrict__ out) {
    constexpr int kLine = kPitch<T>;
    SHARED(T, pixels, kPixels * kLine);
    SHARED(T, filters, kChannels * kLine);
    SHARED(float, results, kPixels*(kChannels + 1));
    const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32;
    Geometry g = all;
    const Phase phase = kGradient ? Phase(g, int(blockIdx.z)) : Phase();
    const int64_t first_pixel = int64_t(blockIdx.x) * kPixels;
    // The phases differ by a row and a column: a block may have no pixels, and sums of 0. A phase may have no taps.
    const int taps = kGradient && first_pixel >= g.pixels() ? 0 : g.taps();
    const int first_channel = int(blockIdx.y) * kChannels;

    // This thread brings the taps 8 * (thread % 4) .. + 8 of the pixels thread / 4 and thread / 4 + 32, and of as many
    // filters.
    Place places[2] = {{-1, 0, 0}, {-1, 0, 0}};
    RG_UNROLL
    for (int i = 0; i < 2; ++i) {
        const int64_t pixel = first_pixel + thread / 4 + 32 * i;
        if (pixel >= g.pixels()) continue; // of a phase without any, the divisors are 0
        const int in_image = int(pixel % (g.out_h * g.out_w));
        const int row = in_image / g.out_w, column = in_image % g.out_w;
        places[i] = {int(pixel / (g.out_h * g.out_w)), kGradient ? row + phase.row : row * g.stride - g.pad,
                     kGradient ? column + phase.column : column * g.stride - g.pad};
    }
    float coming[2][8];
    Pair<T> coming_filters[2][4];
    const auto fetch = [&](int tap) {
        RG_UNROLL
        for (int i = 0; i < 2; ++i) {
            gather<kGradient, kWhole>(g, read, places[i], tap + thread % 4 * 8, coming[i]);
            const int o = kGradient ? thread % 64 : thread / 4 + 32 * i; // neighbours read neighbouring values
            const int t = tap + (kGradient ? (thread / 64 + 2 * i) * 8 : thread % 4 * 8);
            filter<kGradient, kWhole>(all, g, phase, w, first_channel + o, t, coming_filters[i]);
        }
    };

    float sum[2][4][4] = {};
    const int row = warp / 2 * 32, column = warp % 2 * 32; // of this warp's results
    if (taps > 0) fetch(0);
    for (int tap = 0; tap < taps; tap += kTaps) {
        __syncthreads(); // the tiles have been read
        RG_UNROLL
        for (int i = 0; i < 2; ++i) {
            const int o = kGradient ? thread % 64 : thread / 4 + 32 * i;
            const int t = kGradient ? (thread / 64 + 2 * i) * 8 : thread % 4 * 8;
            RG_UNROLL
            for (int j = 0; j < 8; j += 2) {
                put(pixels + (thread / 4 + 32 * i) * kLine + thread % 4 * 8 + j, coming[i][j], coming[i][j + 1]);
                put(filters + o * kLine + t + j, coming_filters[i][j / 2]);
            }
        }
        __syncthreads();
        if (tap + kTaps < taps) fetch(tap + kTaps);
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
            const size_t at = size_t(phase.pixel(all, g, first_pixel + i) * g.out_c + channel);
            float v = results[i * (kChannels + 1) + thread % 64];
            if constexpr (kGradient) {
                if (e.residual) v += load(e.residual + at);
                if (e.parts) e.terms.add(as_stored(v, T{}), at, channel, terms);
            }
            store(out + at, e.relu ? relu_of(v) : v);
        }
    if (!e.parts) return;
    if constexpr (kGradient) {
        __syncthreads(); // the results have been read
        if (thread >= 64) results[thread] = terms.first, results[thread + 64] = terms.second;
        __syncthreads();
    }
    if (thread >= 64 || channel >= g.out_c) return;
    float* const to = e.parts + (size_t(blockIdx.z) * gridDim.x + blockIdx.x) * 2 * g.out_c + channel;
    if constexpr (kGradient) {
        to[0] = terms.first + results[thread + 64];
        to[g.out_c] = terms.second + results[thread + 128];
    } else {
        float mean = 0, squares = 0;
        for (int i = 0; i < count; ++i) mean += results[i * (kChannels + 1) + thread];
        mean /= float(count);
        for (int i = 0; i < count; ++i) {
            const float d = results[i * (kChannels + 1) + thread] - mean;
            squares += d * d;
        }
        to[0] = mean, to[g.out_c] = squares;
    }
}

/// Pixels of a block.
struct BlockPixels {
    int64_t all;
    __device__ double operator()(int block) const {
        return double(min(long(kPixels), long(all - int64_t(block) * kPixels)));
    }
};

/// filters = w, rounded.
template <class T>
__global__ void copy_filters(int count, const float* w, T* filters) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) store(filters + i, w[i]);
}

/// Filters and bias of a convolution and the normalisation after it; a filter has `size` values.
template <class T>
__global__ void fold(int count, int size, const float* w, const float* bias, const float* scale, const float* shift,
                     T* filters, float* biases) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) store(filters + i, w[i] * scale[i / size]);
    if (i < count / size) biases[i] = (bias ? bias[i] * scale[i] : 0) + shift[i];
}

/// Filters as the kernels take them, aligned to 16 bytes: w itself, if it is so, or a copy that is made here.
template <class T>
class Filters {
public:
    explicit Filters(const Tensor& w)
        : made_(differs(w) ? size_t(w.numel()) : 0), data_(differs(w) ? made_.data() : pointer<T>(w)) {
        const int count = int(w.numel());
        if (differs(w))
            RG_LAUNCH(copy_filters<T>, blocks_for(count, 256), 256, 0, stream(), count, pointer<float>(w), made_);
    }
    operator const T*() const { return data_; }

private:
    static bool differs(const Tensor& w) { return std::is_same_v<T, bf16> && w.dtype() != DType::bf16; }
    Scratch<T> made_;
    const T* data_;
};

template <bool kGradient, class T, class Read>
void run(const Geometry& g, const Read& read, std::type_identity_t<const T*> w, Epilogue<T> e, T* out,
         const Wanted& wanted) {
    if constexpr (std::is_same_v<T, bf16>)
        if (convolve_on_hopper(g, kGradient, read, w, e, out, wanted)) return;
    const int step = kGradient ? g.stride : 1; // of a phase, the first of which is the largest
    const int64_t pixels = int64_t(g.images) * ((g.out_h + step - 1) / step) * ((g.out_w + step - 1) / step);
    const unsigned blocks = blocks_for(pixels, kPixels), phases = unsigned(step * step);
    const Scratch<float> parts(wanted ? size_t(blocks) * phases * 2 * size_t(g.out_c) : 0);
    if (wanted) e.parts = parts;
    if (wanted.sums) e.terms = wanted.sums->terms<T>();
    const dim3 grid(blocks, blocks_for(g.out_c, kChannels), phases);
    if (blocks > 0) {
        if (g.in_c % 8 == 0)
            RG_LAUNCH((convolve<T, kGradient, true, Read>), grid, kThreads, 0, stream(), g, read, w, e, out);
        else
            RG_LAUNCH((convolve<T, kGradient, false, Read>), grid, kThreads, 0, stream(), g, read, w, e, out);
    }
    wanted.finish(parts, blocks * phases, BlockPixels{g.pixels()}, g);
}

Geometry geometry(const Tensor& in, const Shape& out, int64_t r, int64_t s, const Attrs& a) {
    return {int(in.extent(0)),
            int(in.extent(1)),
            int(in.extent(2)),
            int(in.extent(3)),
            int(out[1]),
            int(out[2]),
            int(out[3]),
            int(r),
            int(s),
            int(a.stride),
            int(a.pad)};
}

} // namespace

void conv2d(const Call& call) {
    const Tensor &x = call.in[0], &w = call.in[1], &y = call.out[0];
    const Geometry g = geometry(x, y.shape(), w.extent(1), w.extent(2), call.attrs);
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        run<false>(g, Plain<T>{pointer<T>(x)}, Filters<T>(w), {.bias = pointer<float>(call.in[2])}, pointer<T>(y),
                   {call.attrs.stats ? call.out[1] : Tensor()});
    });
}

void norm_conv2d(const Call& call) {
    const Tensor &x = call.in[0], &w = call.in[4], &y = call.out[0];
    const Geometry g = geometry(x, y.shape(), w.extent(1), w.extent(2), call.attrs);
    const Norm norm(call.in[1], call.in[2], call.in[3], call.attrs.epsilon);
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        run<false>(g, norm.read<T>(x, call.attrs.relu), Filters<T>(w), {.bias = pointer<float>(call.in[5])},
                   pointer<T>(y), {call.attrs.stats ? call.out[1] : Tensor()});
    });
}

// The normalisation of the result goes into the filters and the bias.
void conv2d_norm(const Call& call) {
    const Attrs& a = call.attrs;
    const Tensor &x = call.in[0], &w = call.in[1], &y = call.out[0];
    const Attrs conv{.stride = a.stride, .pad = a.pad};
    const OutputSpec whole = row(Op::conv2d).infer(call.in.first(3), conv)[0];
    const Geometry g = geometry(x, whole.shape, w.extent(1), w.extent(2), a);
    const Norm norm(call.in[3], call.in[4], call.in[5], a.epsilon);
    const Scratch<float> bias(size_t(g.out_c));
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        const bool pooled = a.window > 1;
        const Scratch<T> image(pooled ? size_t(whole.shape.numel()) : 0);
        const int count = int(w.numel());
        const Scratch<T> filters(static_cast<size_t>(count));
        RG_LAUNCH(fold<T>, blocks_for(count, 256), 256, 0, stream(), count, count / g.out_c, pointer<float>(w),
                  pointer<float>(call.in[2]), norm.scale(), norm.shift(), filters, bias);
        run<false>(g, Plain<T>{pointer<T>(x)}, filters, {.bias = bias, .relu = a.relu},
                   pooled ? image.data() : pointer<T>(y), {});
        if (pooled) max_pool(image.data(), whole.shape, int(a.window), pointer<T>(y));
    });
}

void conv2d_dgrad(const Call& call) {
    const Tensor &dy = call.in[0], &w = call.in[1], &dx = call.out[0];
    const Geometry g = geometry(dy, dx.shape(), w.extent(1), w.extent(2), call.attrs);
    with_stored(dy, [&](auto t) {
        using T = decltype(t);
        run<true>(g, Plain<T>{pointer<T>(dy)}, Filters<T>(w), {.residual = pointer<T>(call.in[2])}, pointer<T>(dx), {});
    });
}

template <class T>
void data_gradient(const NormGradient<T>& dy, const Shape& dy_shape, const Tensor& w, const Attrs& a,
                   const Tensor& residual, const Tensor& dx, const NormSums* sums) {
    const Geometry g{int(dy_shape[0]),  int(dy_shape[1]),  int(dy_shape[2]),  int(dy_shape[3]),
                     int(dx.extent(1)), int(dx.extent(2)), int(dx.extent(3)), int(w.extent(1)),
                     int(w.extent(2)),  int(a.stride),     int(a.pad)};
    run<true>(g, dy, Filters<T>(w), {.residual = pointer<T>(residual)}, pointer<T>(dx), {{}, sums});
}
template void data_gradient(const NormGradient<float>&, const Shape&, const Tensor&, const Attrs&, const Tensor&,
                            const Tensor&, const NormSums*);
template void data_gradient(const NormGradient<bf16>&, const Shape&, const Tensor&, const Attrs&, const Tensor&,
                            const Tensor&, const NormSums*);

} // namespace rg::RG_GPU
