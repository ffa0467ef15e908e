// Convolution and its data gradient as implicit matrix products on tensor cores. Rows are pixels of the result, columns
// are its channels, and the sum runs over the values of a filter. There is no im2col buffer: a block stages the pixels
// that its tile reads (halo.cuh), and the products read them for each row and column of the filters.
//
// A block of 4 warps computes 128 pixels x 32 or 64 channels; each warp computes 32 of the pixels. While pixels are
// staged, readers (values.cuh) apply batch norm, ReLU or their gradient. A unit is 8 channels of one row and column of
// the filters. Two units at a time are multiplied in bf16, from one or two planes (planes.cuh). Unless given filters
// are such a plane already, a separate kernel first brings them into planes, so that not every block has to. Results
// pass through shared memory, so that each thread stores 8 channels of a pixel.
//
// If an op asks for statistics of the result, each block stores two values per channel. In the forward pass, they are a
// mean and a sum of squared deviations. In the data gradient, they are the two sums that batch norm's gradient needs.
// ChannelReductions (conv.cuh) merges the values of all blocks in a fixed order.
#include "gpu/conv.cuh"
#include "gpu/conv_choice.cuh"
#include "gpu/conv_results.cuh"
#include "gpu/halo.cuh"
#include "gpu/kernels.h"
#include "gpu/norm.cuh"
#include "gpu/octets.cuh"
#include "gpu/planes.cuh"

namespace rg::RG_GPU {

namespace {

/// The dynamic shared memory of a block that computes kN channels of the result, from kOctets octets of input channels
/// at a time. First, it holds the planes of the staged pixels, those of the filters [unit][channel of the result]
/// [8 channels], and for each unit the two numbers of list_units(). Then it holds the results and the sums of the
/// threads.
template <int kPlanes, int kOctets, int kN>
struct BlockMemory {
    /// Units are multiplied in pairs. If their number is odd, the last one gets a partner that reads zeros: an octet
    /// beyond the last channel or, with kOctets = 1, an additional octet.
    static constexpr int kStagedOctets = kOctets == 1 ? 2 : kOctets;
    // A padding of 16 bytes puts 8 neighbouring units (pixels, threads) into different banks.
    static constexpr int kUnitPitch = 8 * kN + 8;
    static constexpr int kPixelBytes = kPlanes * 8 * kStagedOctets * int(sizeof(bf16));
    static constexpr int kUnitBytes = kPlanes * kUnitPitch * int(sizeof(bf16)) + 2 * int(sizeof(int));
    using Results = ResultTile<kTilePixels, kN, kTileThreads>;
    static __host__ __device__ int units(const Tiling& t) { return (t.taps.h * t.taps.w * kOctets + 1) / 2 * 2; }
    /// Return the number of bf16 values in one plane (planes.cuh): of the staged pixels, and of the filters.
    static __host__ __device__ int pixel_plane(const Tiling& t) { return kStagedOctets * t.octet_cells * 8; }
    static __host__ __device__ int filter_plane(const Tiling& t) { return units(t) * kUnitPitch; }
    static size_t bytes(const Tiling& t) {
        return size_t(std::max(Results::kBytes, t.octet_cells * kPixelBytes + units(t) * kUnitBytes));
    }
};

// ---- the products of a warp: 32 pixels x kN channels ---------------------------------------------------------------

template <class M, int kPlanes, int kN>
__device__ __forceinline__ void multiply(const Tiling& t, const int* cells, const bf16* staged, const bf16* filters,
                                         const int* unit_cells, int units, float (&sum)[2][kN / 8][4]) {
    const int lane = int(threadIdx.x) % 32, pixel_plane = M::pixel_plane(t), filter_plane = M::filter_plane(t);
    const bf16* const pixels[2] = {staged + cells[lane % 16] * 8, staged + cells[16 + lane % 16] * 8};
    const bf16* const filter = filters + lane / 8 % 2 * M::kUnitPitch + (lane / 16 * 8 + lane % 8) * 8;
    for (int unit = 0; unit < units; unit += 2) {
        const int offset = unit_cells[unit + lane / 16] * 8;
        uint32_t rows[kPlanes][2][4], columns[kPlanes][4];
        RG_UNROLL
        for (int plane = 0; plane < kPlanes; ++plane) RG_UNROLL
        for (int m = 0; m < 2; ++m) ldmatrix_x4(rows[plane][m], pixels[m] + plane * pixel_plane + offset);
        RG_UNROLL
        for (int n = 0; n < kN / 8; n += 2) {
            RG_UNROLL
            for (int plane = 0; plane < kPlanes; ++plane)
                ldmatrix_x4(columns[plane], filter + plane * filter_plane + unit * M::kUnitPitch + n * 64);
            multiply_planes<2>(rows, columns, [&](int m, int half) -> float(&)[4] { return sum[m][n + half]; });
        }
    }
}

// ---- the kernels ---------------------------------------------------------------------------------------------------

/// Stages the filters of all units for kN channels of the result. Each plane of w (planes.cuh) holds filters
/// [to_c][rows][columns][from_c]; for the data gradient, a kernel has exchanged their channels. Filters of result
/// channels beyond the last do not matter. `in_channels` is the number of input channels from the units' first one on.
template <class M, int kPlanes, bool kWhole, int kN>
__device__ __forceinline__ void stage_filters(const ConvGeometry& g, const Tiling& t, const bf16* w, int first_out,
                                              int in_channels, int units, const int* unit_places, bf16* filters) {
    constexpr int kUnits = 64 / kN; // units that a thread takes at a time; so 4 octets of each plane are in flight
    const int thread = int(threadIdx.x), size = g.filter_values();
    for (int begin = thread % 8; begin < units; begin += 8 * kUnits) {
        uint4 loaded[kPlanes][kUnits][kN / 16];
        int places[kUnits];
        RG_UNROLL
        for (int u = 0; u < kUnits; ++u) {
            places[u] = begin + 8 * u < units ? unit_places[begin + 8 * u] : -1;
            RG_UNROLL
            for (int plane = 0; plane < kPlanes; ++plane) RG_UNROLL
            for (int i = 0; i < kN / 16; ++i) {
                const int o = min(first_out + thread / 8 + 16 * i, g.to_c - 1);
                loaded[plane][u][i] =
                    load_eight(w + plane * g.to_c * size, size_t(o * size + max(places[u], 0)), kWhole, in_channels);
            }
        }
        RG_UNROLL
        for (int plane = 0; plane < kPlanes; ++plane) RG_UNROLL
        for (int u = 0; u < kUnits; ++u) RG_UNROLL
        for (int i = 0; i < kN / 16; ++i)
            if (const int unit = begin + 8 * u; unit < units)
                store_octet(filters + plane * M::filter_plane(t) + unit * M::kUnitPitch + (thread / 8 + 16 * i) * 8,
                            select(places[u] >= 0, loaded[plane][u][i], 0));
    }
}

/// The minimum of blocks per SM for the launch bounds. A larger one makes the compiler spill registers.
template <class T, bool kDgrad, int kN>
constexpr int kBlocks = std::is_same_v<T, float> ? 3 : 5 - int(kDgrad) - int(kN > 32);

/// The body of conv2d_forward_kernel and conv2d_dgrad_kernel. They have two names so that profiles tell the forward
/// pass from the data gradient.
template <class T, bool kDgrad, bool kWhole, int kN, class Reader>
__device__ __forceinline__ void convolve(const ConvGeometry& g, const Tiling& t, const Reader& reader,
                                         const bf16* __restrict__ w, const ConvEpilogue<T>& e, T* __restrict__ out) {
    constexpr int kOctets = kWhole ? 4 : 1;
    using M = BlockMemory<kPlanes<T>, kOctets, kN>;
    DYNAMIC_SHARED(std::byte, memory);
    SHARED(int, cells, kTilePixels);   // the first staged pixel of each result
    SHARED(int, numbers, kTilePixels); // the pixel number of each result in `out`; -1 outside of the images
    const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const Tile tile(t, int(blockIdx.x));
    const int first_out = int(blockIdx.y) * kN;
    const int phase_row = kDgrad ? int(blockIdx.z) / g.stride.w : 0, row_step = kDgrad ? g.stride.h : 1;
    const int phase_column = kDgrad ? int(blockIdx.z) % g.stride.w : 0, column_step = kDgrad ? g.stride.w : 1;
    {
        const TilePixel pixel(t, tile, thread);
        const int row = pixel.row * row_step + phase_row, column = pixel.column * column_step + phase_column;
        const bool inside = pixel.image < g.images && row < g.to_h && column < g.to_w;
        cells[thread] = pixel.cell;
        numbers[thread] = inside ? (pixel.image * g.to_h + row) * g.to_w + column : -1;
    }
    bf16 *const staged = reinterpret_cast<bf16*>(memory), *const filters = staged + kPlanes<T> * M::pixel_plane(t);
    int* const unit_cells = reinterpret_cast<int*>(filters + kPlanes<T> * M::filter_plane(t));
    int* const unit_places = unit_cells + M::units(t);
    if constexpr (M::kStagedOctets > kOctets)
        for (int i = thread; i < t.cells; i += kTileThreads)
            store_planes<T>(staged + (kOctets * t.octet_cells + i) * 8, M::pixel_plane(t), Octet{});

    float sum[2][kN / 8][4] = {};
    const TapAxis row_axis = TapAxis::rows(g, t), column_axis = TapAxis::columns(g, t);
    const int row_ranges = kDgrad ? row_axis.phase_ranges() : row_axis.ranges();
    const int column_ranges = kDgrad ? column_axis.phase_ranges() : column_axis.ranges();
    for (int channel = 0; channel < g.from_c; channel += 8 * kOctets)
        for (int r = 0, s = 0; r < row_ranges; s + 1 < column_ranges ? ++s : (s = 0, ++r)) {
            const TapRange rows = kDgrad ? row_axis.phase_range(phase_row, r) : row_axis.range(r);
            const TapRange columns = kDgrad ? column_axis.phase_range(phase_column, s) : column_axis.range(s);
            if (rows.count <= 0 || columns.count <= 0) continue;
            __syncthreads(); // all warps have read the previous pixels and filters
            const int octets = min(kOctets, steps_in(g.from_c - channel, 8));
            const int units = list_units<true>(g, t, rows, columns, channel, octets, unit_cells, unit_places);
            stage_pixels<T, kWhole, kOctets>(g, t, tile, rows, columns, reader, channel, staged, M::pixel_plane(t));
            __syncthreads(); // the units are listed
            stage_filters<M, kPlanes<T>, kWhole, kN>(g, t, w, first_out, g.from_c - channel, units, unit_places,
                                                     filters);
            __syncthreads(); // pixels and filters are staged
            multiply<M, kPlanes<T>, kN>(t, cells + 32 * warp, staged, filters, unit_cells, units, sum);
        }

    __syncthreads(); // all warps have read the last pixels and filters
    float* const results = reinterpret_cast<float*>(memory);
    RG_UNROLL
    for (int m = 0; m < 2; ++m) RG_UNROLL
    for (int n = 0; n < kN / 8; ++n) RG_UNROLL
    for (int i = 0; i < 2; ++i)
        *reinterpret_cast<float2*>(results + (32 * warp + 16 * m + 8 * i + lane / 4) * M::Results::kPitch + 8 * n +
                                   lane % 4 * 2) = make_float2(sum[m][n][2 * i], sum[m][n][2 * i + 1]);
    __syncthreads(); // the results are in shared memory
    M::Results::template finish<kDgrad>(
        e, g.to_c, first_out, results, numbers, [&] { return tile.results(t, g.images, g.to_w); },
        blockIdx.z * gridDim.x + blockIdx.x, out);
}

template <class T, bool kWhole, int kN, class Reader>
__global__ void __launch_bounds__(kTileThreads, kBlocks<T, false, kN>)
    conv2d_forward_kernel(ConvGeometry g, Tiling t, Reader reader, const bf16* __restrict__ w, ConvEpilogue<T> e,
                          T* __restrict__ out) {
    convolve<T, false, kWhole, kN>(g, t, reader, w, e, out);
}

template <class T, bool kWhole, int kN, class Reader>
__global__ void __launch_bounds__(kTileThreads, kBlocks<T, true, kN>)
    conv2d_dgrad_kernel(ConvGeometry g, Tiling t, Reader reader, const bf16* __restrict__ w, ConvEpilogue<T> e,
                        T* __restrict__ out) {
    convolve<T, true, kWhole, kN>(g, t, reader, w, e, out);
}

/// A functor that returns the number of result pixels of a block in the forward pass.
struct BlockPixels {
    Tiling t;
    int images, columns;
    __device__ double operator()(int block) const { return double(Tile(t, block).results(t, images, columns)); }
};

/// Brings the `count` values of filters w into planes. w is [k][places][c]; for the data gradient, a plane is
/// [c][places][k], else the same. A place is a row and a column.
template <int kPlanes, bool kDgrad, class Given>
__global__ void conv2d_filter_planes_kernel(int count, int places, int c, int k, const Given* w, bf16* planes) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= count) return;
    const float value = load(w + (kDgrad ? (i % k * places + i / k % places) * c + i / k / places : i));
    const bf16 high = to_bf16(value);
    planes[i] = high;
    if constexpr (kPlanes == 2) store(planes + count + i, value - to_float(high));
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

// ---- the host code that launches them ------------------------------------------------------------------------------

/// Provides the planes of the filters of a convolution, or of its data gradient, with activations of type T. Given
/// filters must be aligned to 16 bytes, as each tensor with memory of its own is.
template <bool kDgrad, class T>
class FilterPlanes {
public:
    FilterPlanes(const ConvGeometry& g, const GivenFilters& w)
        : copy_(serves(w) ? 0 : kPlanes<T> * size_t(g.filter_values()) * size_t(g.to_c)),
          data_(serves(w) ? w.rounded : copy_.data()) {
        const auto fill = [&](auto* given) {
            const int count = g.filter_values() * g.to_c, places = g.r * g.s;
            if (count == 0) return;
            RG_LAUNCH((conv2d_filter_planes_kernel<kPlanes<T>, kDgrad, std::decay_t<decltype(*given)>>),
                      blocks_for(count, 256), 256, 0, stream(), count, places, g.to_c, g.from_c, given, copy_);
        };
        if (serves(w)) return;
        w.visit(fill);
    }
    operator const bf16*() const { return data_; }

private:
    /// Returns true if the given filters are the plane that is needed.
    static bool serves(const GivenFilters& w) { return kPlanes<T> == 1 && !kDgrad && w.rounded; }
    DeviceScratch<bf16> copy_;
    const bf16* data_;
};

/// Runs a convolution or its data gradient, and `reductions` of its results. `g` has the extents of this direction.
template <bool kDgrad, class T, class Reader>
void run_conv2d(const KernelChoice& choice, const ConvGeometry& g, const Reader& reader, const GivenFilters& given,
                ConvEpilogue<T> e, T* out, const ChannelReductions& reductions) {
    if constexpr (std::is_same_v<T, bf16>)
        if (choice.family == KernelFamily::hopper)
            return convolve_on_hopper(g, kDgrad, reader, given, e, out, reductions);
    if constexpr (std::is_same_v<T, bf16> && !kDgrad)
        if (choice.plan) return convolve_packed(g, *choice.plan, reader, given, e, out, reductions);
    const FilterPlanes<kDgrad, T> w(g, given);
    const auto launch_kernel = [&](auto whole, auto channels) {
        constexpr bool kWhole = decltype(whole)::value;
        constexpr int kOctets = kWhole ? 4 : 1, kN = decltype(channels)::value;
        using M = BlockMemory<kPlanes<T>, kOctets, kN>;
        const Axes step = kDgrad ? g.stride : Axes(1); // there are step.h x step.w phases; phase 0 has the most pixels
        const Tiling t = tiling_of(g, step, g.r * g.s, M::kPixelBytes, kOctets * M::kUnitBytes);
        const unsigned blocks = unsigned(t.blocks()), phases = unsigned(step.h * step.w);
        const DeviceScratch<float> partials(reductions ? size_t(blocks) * phases * 2 * size_t(g.to_c) : 0);
        if (reductions) e.partials = partials;
        if (reductions.sums) e.terms = reductions.sums->terms<T>();
        const dim3 grid(blocks, blocks_for(g.to_c, kN), phases);
        if (blocks > 0) {
            if constexpr (kDgrad)
                RG_LAUNCH((conv2d_dgrad_kernel<T, kWhole, kN, Reader>), grid, kTileThreads, M::bytes(t), stream(), g, t,
                          reader, w, e, out);
            else
                RG_LAUNCH((conv2d_forward_kernel<T, kWhole, kN, Reader>), grid, kTileThreads, M::bytes(t), stream(), g,
                          t, reader, w, e, out);
        }
        reductions.finish(partials, blocks * phases, BlockPixels{t, g.images, g.to_w}, g);
    };
    // Tiles of 64 channels would take too much shared memory in f32. If the number of input channels is no multiple of
    // 8, it is mostly that of a first layer: so small that these tiles gain nothing.
    const Constant<32> narrow;
    if (g.from_c % 8 != 0) return launch_kernel(std::false_type{}, narrow);
    if constexpr (std::is_same_v<T, bf16>)
        if (g.to_c > 32) return launch_kernel(std::true_type{}, Constant<64>{});
    launch_kernel(std::true_type{}, narrow);
}

} // namespace

// If the op also applies batch norm to the result, that is folded into the filters and the bias.
void conv2d(const Call& call) {
    using O = Conv2dOp;
    const auto& a = call.attrs.as<O>();
    const KernelChoice choice = choose_conv2d(call);
    if (choice.family == KernelFamily::groups) return conv2d_in_groups(call);
    if (choice.family == KernelFamily::linear) return linear_forward(call);
    const Tensor &x = call.in[O::x], &w = call.in[O::w], &y = call.out[O::y];
    const ConvGeometry& g = choice.g;
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        with_reader<T>(a.x_norm.operand(call.in), [&](const auto& reader) {
            const BatchNormTensors y_norm = a.y_norm.given(call.in);
            if (!y_norm) // y_norm may still have gamma and beta: then `after` computes coefficients from the statistics
                return run_conv2d<false>(
                    choice, g, reader, w, {.bias = pointer<float>(call.in[O::bias])}, pointer<T>(y),
                    {.stats = a.with_stats ? call.out[O::stats] : Tensor(),
                     .after = {pointer<float>(y_norm.gamma), pointer<float>(y_norm.beta), a.y_norm.epsilon,
                               pointer<float>(call.in[O::running]), double(a.momentum)}});
            const NormCoefficients norm(y_norm);
            const int count = int(w.numel());
            const DeviceScratch<float> bias(size_t(g.to_c));
            const DeviceScratch<T> filters(static_cast<size_t>(count));
            RG_LAUNCH(conv2d_norm_fold_kernel<T>, blocks_for(count, 256), 256, 0, stream(), count, count / g.to_c,
                      pointer<float>(w), pointer<float>(call.in[O::bias]), norm.scale(), norm.shift(), filters, bias);
            run_conv2d<false>(choice, g, reader, filters.data(), {.bias = bias, .relu = is_relu(a.y_norm.activation)},
                              pointer<T>(y), {});
        });
    });
}

template <class T, class Reader>
void data_gradient(const KernelChoice& choice, const Reader& dy, const Call& call, const NormGradientSums* sums) {
    using O = Conv2dGradOp;
    const Tensor &w = call.in[O::w], &dx = call.out[O::dx];
    run_conv2d<true>(choice, geometry_of(call.in[O::dy].shape(), dx.shape(), w, call.attrs.as<O>().conv), dy, w,
                     {.addend = pointer<T>(call.in[O::addend])}, pointer<T>(dx), {{}, sums});
}
#define RG_DATA_GRADIENT(T, Reader)                                                                                    \
    template void data_gradient<T>(const KernelChoice&, const Reader<T>&, const Call&, const NormGradientSums*);
RG_DATA_GRADIENT(float, Plain)
RG_DATA_GRADIENT(float, NormGradReader)
RG_DATA_GRADIENT(bf16, Plain)
RG_DATA_GRADIENT(bf16, NormGradReader)

} // namespace rg::RG_GPU
