// The weight gradient of a convolution as an implicit matrix product. Rows are filters, columns are the values of a
// filter, and the sum runs over pixels of y. The pixels are split between blocks. A second kernel adds the blocks' sums
// in a fixed order, so that every run gives the same bits.
//
// A block of 4 warps computes 32 filters x 36 units, or 12 units if the number of filters or of input channels is no
// multiple of 8. A unit is 8 channels of one row and column of the filters. For each of its tiles of 128 pixels, the
// block stages dy with one row per pixel, and the pixels of x that the units read (halo.cuh). The products need both
// transposed, as ldmatrix loads them. Both are in one or two planes (planes.cuh). An additional product by ones gives
// the bias gradient.
#include "gpu/conv.cuh"
#include "gpu/conv_choice.cuh"
#include "gpu/divisor.cuh"
#include "gpu/halo.cuh"
#include "gpu/kernels.h"
#include "gpu/octets.cuh"
#include "gpu/planes.cuh"

#include <optional>

namespace rg::RG_GPU {

namespace {

constexpr int kFilters = 32, kWarps = kTileThreads / 32;
/// The desired number of blocks per SM. Blocks that compute the same values of dw split the tiles of pixels. There is
/// at most one such block per 4 tiles (rounded up), since the blocks' sums must be added.
constexpr int kBlocksPerSm = 3, kTilesPerBlock = 512 / kTilePixels;
/// Values from a pixel of dy to the next, with a padding that puts 8 neighbouring pixels into different banks. And
/// values of a tile of dy in bf16, which may need two such tiles (planes.cuh).
constexpr int kDyPitch = kFilters + 8, kDyPlane = kTilePixels * kDyPitch;

/// The operands that are loaded by octets of channels. `both` and `dy` require that their numbers of channels are
/// multiples of 8.
enum class WholeOctets { both, dy, none };

/// The octets of channels of x that a block stages, and the units of a warp. The 4 warps cover these octets at all 9
/// positions of 3 x 3 filters.
template <WholeOctets kWhole>
constexpr int kOctets = kWhole == WholeOctets::both ? 4 : 1;
template <WholeOctets kWhole>
constexpr int kWarpUnits = kWhole == WholeOctets::both ? 9 : 3;

/// Stages the planes of a tile of dy for 32 filters. Pixels and filters beyond the last are 0. There, loads of octets
/// read the start of dy instead: with a branch around a load, the compiler would wait for one load before the next.
template <class T, bool kWhole, class Reader>
__device__ __forceinline__ void stage_dy(const ConvGeometry& g, const Tiling& t, const Tile& tile, const Reader& reader,
                                         int first_filter, bf16* dy) {
    // The loads of kBatch pixels are in flight together.
    constexpr int kOctets = kFilters / 8, kStep = kTileThreads / kOctets, kBatch = 2;
    const int octet = int(threadIdx.x) % kOctets * 8, filter = first_filter + octet;
    const OctetSource<kWhole, Reader> source(reader, filter < g.to_c ? filter : 0);
    for (int begin = int(threadIdx.x) / kOctets; begin < kTilePixels; begin += kBatch * kStep) {
        typename OctetSource<kWhole, Reader>::Loaded loaded[kBatch];
        bool inside[kBatch];
        RG_UNROLL
        for (int i = 0; i < kBatch; ++i) {
            const TilePixel pixel(t, tile, begin + i * kStep);
            inside[i] = pixel.image < g.images && pixel.column < g.to_w && filter < g.to_c;
            const int number = (pixel.image * g.to_h + pixel.row) * g.to_w + pixel.column;
            const size_t index = inside[i] ? size_t(number) * g.to_c + filter : 0;
            load_octet<kWhole, Reader>(source, index, inside[i], filter, g.to_c, loaded[i]);
        }
        RG_UNROLL
        for (int i = 0; i < kBatch; ++i)
            store_planes<T>(dy + (begin + i * kStep) * kDyPitch + octet, kDyPlane,
                            select(inside[i], source.transform(loaded[i]), 0));
    }
}

/// The sums of a warp: 32 filters x kUnits units, and for the bias gradient 16 filters x 8 ones. For the ones, warps
/// with an even number take the first 16 filters, and the others the last 16.
template <int kUnits>
struct WarpSums {
    float units[kUnits][2][4] = {}, ones[4] = {};
};

/// Adds the products of a tile. Planes of x are `x_plane` values apart. `cells` and unit_cells are those of TilePixel
/// and list_units() (halo.cuh). The warp takes kUnits of the block's `units` units, from unit `first` on. If there are
/// fewer, it multiplies the last unit several times, and the kernel does not store the repeats.
template <int kPlanes, int kUnits>
__device__ __forceinline__ void multiply(const bf16* dy, const bf16* x, int x_plane, const int* cells,
                                         const int* unit_cells, int first, int units, WarpSums<kUnits>& sums) {
    const int lane = int(threadIdx.x) % 32;
    int offsets[(kUnits + 1) / 2];
    RG_UNROLL
    for (int i = 0; i < kUnits; i += 2) offsets[i / 2] = unit_cells[min(first + i + lane / 16, units - 1)] * 8;
    const uint32_t ones[2] = {0x3f803f80, 0x3f803f80};
    RG_NO_UNROLL
    for (int t = 0; t < kTilePixels; t += 16) {
        uint32_t rows[kPlanes][2][4], columns[kPlanes][4];
        RG_UNROLL
        for (int plane = 0; plane < kPlanes; ++plane) RG_UNROLL
        for (int m = 0; m < 2; ++m)
            ldmatrix_x4_trans(rows[plane][m], dy + plane * kDyPlane + (t + lane % 8 + lane / 16 * 8) * kDyPitch +
                                                  16 * m + lane / 8 % 2 * 8);
        const bf16* const pixel = x + cells[t + lane % 16] * 8;
        RG_UNROLL
        for (int i = 0; i < kUnits; i += 2) {
            RG_UNROLL
            for (int plane = 0; plane < kPlanes; ++plane)
                ldmatrix_x4_trans(columns[plane], pixel + plane * x_plane + offsets[i / 2]);
            const auto sum = [&](int m, int half) -> float(&)[4] { return sums.units[i + half][m]; };
            if (i + 1 < kUnits)
                multiply_planes<2>(rows, columns, sum);
            else
                multiply_planes<1>(rows, columns, sum);
        }
        float part[4] = {};
        RG_UNROLL
        for (int plane = kPlanes - 1; plane >= 0; --plane) {
            uint32_t half[4];
            RG_UNROLL
            for (int i = 0; i < 4; ++i) half[i] = threadIdx.x / 32 % 2 ? rows[plane][1][i] : rows[plane][0][i];
            mma_bf16_16x8x16(part, half, ones);
        }
        RG_UNROLL
        for (int i = 0; i < 4; ++i) sums.ones[i] += part[i];
    }
}

/// Stores each block's sums over its pixels to the partial (conv.cuh) of its split. In the grid, x selects a range of
/// rows and of columns of the filters and a range of channels, y 32 filters, and z a split: a range of tiles. The
/// launch bound keeps the compiler from spilling registers to get one block more.
template <class T, WholeOctets kWhole, class DyReader, class XReader>
__global__ void __launch_bounds__(kTileThreads, std::is_same_v<T, bf16> ? 3 : 2)
    conv2d_wgrad_kernel(ConvGeometry g, Tiling t, DyReader dy_reader, XReader x_reader, int tiles_per_split,
                        float* __restrict__ partials) {
    constexpr int kUnits = kWarpUnits<kWhole>, kMaxUnits = kWarps * kUnits, kChannels = 8 * kOctets<kWhole>;
    DYNAMIC_SHARED(bf16, x);
    SHARED(bf16, dy, kPlanes<T> * kDyPlane);
    SHARED(int, cells, kTilePixels); // the first staged pixel of each result
    SHARED(int, unit_cells, kMaxUnits);
    SHARED(int, unit_places, kMaxUnits);
    const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int first_filter = int(blockIdx.y) * kFilters;
    const TapAxis row_axis = TapAxis::rows(g, t), column_axis = TapAxis::columns(g, t);
    const int row_ranges = row_axis.ranges(), column_ranges = column_axis.ranges();
    const TapRange rows = row_axis.range(int(blockIdx.x) % row_ranges);
    const TapRange columns = column_axis.range(int(blockIdx.x) / row_ranges % column_ranges);
    if (rows.count <= 0 || columns.count <= 0) return;
    const int first_channel = int(blockIdx.x) / (row_ranges * column_ranges) * kChannels;
    const int octets = min(kOctets<kWhole>, steps_in(g.from_c - first_channel, 8));
    const int units = list_units<false>(g, t, rows, columns, first_channel, octets, unit_cells, unit_places);
    const int first_unit = warp * kUnits, x_plane = kOctets<kWhole> * t.octet_cells * 8;

    WarpSums<kUnits> sums;
    const int begin = int(blockIdx.z) * tiles_per_split, end = min(begin + tiles_per_split, t.blocks());
    for (int number = begin; number < end; ++number) {
        const Tile tile(t, number);
        __syncthreads(); // all warps have read the previous tile
        cells[thread] = TilePixel(t, tile, thread).cell;
        stage_pixels<T, kWhole == WholeOctets::both, kOctets<kWhole>>(g, t, tile, rows, columns, x_reader,
                                                                      first_channel, x, x_plane);
        stage_dy<T, kWhole != WholeOctets::none>(g, t, tile, dy_reader, first_filter, dy);
        __syncthreads(); // the tile is staged
        multiply<kPlanes<T>>(dy, x, x_plane, cells, unit_cells, first_unit, units, sums);
    }

    const int pitch = wgrad_pitch(g.filter_values()), channel = lane % 4 * 2;
    float* const partial = partials + size_t(blockIdx.z) * g.to_c * pitch;
    RG_UNROLL
    for (int m = 0; m < 2; ++m) RG_UNROLL
    for (int i = 0; i < 4; i += 2) {
        const int filter = first_filter + 16 * m + lane / 4 + i / 2 * 8;
        if (filter >= g.to_c) continue;
        RG_UNROLL
        for (int unit = 0; unit < kUnits; ++unit) {
            if (first_unit + unit >= units) continue;
            float* const to = partial + filter * pitch + unit_places[first_unit + unit] + channel;
            const float first = sums.units[unit][m][i], second = sums.units[unit][m][i + 1];
            if constexpr (kWhole == WholeOctets::both) {
                *reinterpret_cast<float2*>(to) = make_float2(first, second);
            } else {
                if (first_channel + channel < g.from_c) to[0] = first;
                if (first_channel + channel + 1 < g.from_c) to[1] = second;
            }
        }
        if (blockIdx.x == 0 && warp == m && channel == 0) partial[filter * pitch + g.filter_values()] = sums.ones[i];
    }
}

/// Adds the sums of all splits and stores dw and db. A block takes `values` values at a time, and 256 / values threads
/// share each of them.
__global__ void __launch_bounds__(256)
    conv2d_wgrad_reduce_kernel(int splits, int values, int k, int filter_values, Divisor pitch, const float* partials,
                               float* dw, float* db) {
    SHARED(double, sums, 256);
    const int value = int(threadIdx.x) % values, first = int(threadIdx.x) / values, shares = 256 / values;
    const int i = int(blockIdx.x) * values + value, count = k * int(pitch), filter = i / pitch, at = i % pitch;
    const bool inside = i < count && at <= filter_values;
    double sum = 0;
    if (inside)
        for (int split = first; split < splits; split += shares) sum += double(partials[size_t(split) * count + i]);
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (first > 0 || !inside) return;
    for (int other = 1; other < shares; ++other) sum += sums[other * values + value];
    (at < filter_values ? dw[filter * filter_values + at] : db[filter]) = float(sum);
}

/// Computes dw [filters, rows, columns, channels] and db [filters].
template <class T, class DyReader, class XReader>
void run_wgrad(const ConvGeometry& g, const DyReader& dy, const XReader& x, const Tensor& dw, const Tensor& db) {
    const size_t count = size_t(g.to_c) * size_t(wgrad_pitch(g.filter_values()));
    const auto launch_kernel = [&](auto whole) {
        constexpr WholeOctets kWhole = decltype(whole)::value;
        constexpr int kPixelBytes = kPlanes<T> * 8 * kOctets<kWhole> * int(sizeof(bf16));
        const Tiling t = tiling_of(g, PerAxis(1), kWarps * kWarpUnits<kWhole> / kOctets<kWhole>, kPixelBytes, 0);
        const int ranges = TapAxis::rows(g, t).ranges() * TapAxis::columns(g, t).ranges();
        const dim3 grid(unsigned(ranges * steps_in(g.from_c, 8 * kOctets<kWhole>)), blocks_for(g.to_c, kFilters));
        const int blocks = kBlocksPerSm * gpu_traits().sm_count;
        const int max_splits =
            std::min(std::max(1, blocks / int(grid.x * grid.y)), steps_in(t.blocks(), kTilesPerBlock));
        const int per_split = steps_in(t.blocks(), std::max(1, max_splits));
        const unsigned splits = blocks_for(t.blocks(), std::max(1, per_split));
        const DeviceScratch<float> partials(splits * count);
        if (splits > 0)
            RG_LAUNCH((conv2d_wgrad_kernel<T, kWhole, DyReader, XReader>), dim3(grid.x, grid.y, splits), kTileThreads,
                      size_t(t.octet_cells * kPixelBytes), stream(), g, t, dy, x, per_split, partials);
        reduce_wgrad(g, int(splits), partials, dw, db);
    };
    if (g.to_c % 8 != 0)
        launch_kernel(std::integral_constant<WholeOctets, WholeOctets::none>{});
    else if (g.from_c % 8 != 0)
        launch_kernel(std::integral_constant<WholeOctets, WholeOctets::dy>{});
    else
        launch_kernel(std::integral_constant<WholeOctets, WholeOctets::both>{});
}

} // namespace

void reduce_wgrad(const ConvGeometry& g, int count, const float* partials, const Tensor& dw, const Tensor& db) {
    const int values = count >= 8 ? 32 : 256; // few splits need no sharing
    const int64_t all = int64_t(g.to_c) * wgrad_pitch(g.filter_values());
    RG_CHECK(all < INT32_MAX - values, "conv2d_grad: expected fewer than 2^31 values in all filters, got ", all);
    RG_LAUNCH(conv2d_wgrad_reduce_kernel, blocks_for(all, values), 256, 0, stream(), count, values, g.to_c,
              g.filter_values(), Divisor(wgrad_pitch(g.filter_values())), partials, pointer<float>(dw),
              pointer<float>(db));
}

// If y is given, a batch norm follows the convolution, and dy is the gradient with respect to its result. The kernels
// then compute the gradient with respect to y, the result of the convolution, while they load dy and y.
void conv2d_grad(const Call& call) {
    using O = Conv2dGradOp;
    const auto& a = call.attrs.as<O>();
    const KernelChoice choice = choose_conv2d_grad(call);
    if (choice.family == KernelFamily::groups) return conv2d_grad_in_groups(call);
    if (choice.family == KernelFamily::linear) return linear_grad(call);
    const bool hopper = choice.family == KernelFamily::hopper || choice.family == KernelFamily::hopper_wgrad;
    const Tensor &dy = call.in[O::dy], &x = call.in[O::x], &y = call.in[O::y];
    const Tensor &dw = call.out[O::dw], &dbias = call.out[O::dbias];
    with_stored(dy, [&](auto t) {
        using T = decltype(t);
        const auto run = [&](const auto& dy_reader, const auto& x_reader, const NormGradientSums* sums) {
            if constexpr (std::is_same_v<T, bf16>) {
                if (choice.plan) return conv2d_grad_packed(choice, dy_reader, x_reader, call, sums);
                if (a.filters && hopper) wgrad_on_hopper(choice.g, dy_reader, x_reader, dw, dbias);
            }
            if (a.filters && !hopper) run_wgrad<T>(choice.g, dy_reader, x_reader, dw, dbias);
            if (a.data) data_gradient<T>(choice, dy_reader, call, sums);
        };
        const Plain<T> plain_x{pointer<T>(x)};
        if (!y.defined()) return run(Plain<T>{pointer<T>(dy)}, plain_x, nullptr);
        const NormCoefficients y_norm(a.y_norm.given(call.in), call.in[O::y_sums], double(choice.g.pixels()));
        const NormGradReader<T> reader = y_norm.gradient<T>(dy, y);
        if (!a.x_norm.given(call.in)) return run(reader, plain_x, nullptr);
        const NormCoefficients x_norm(a.x_norm.given(call.in));
        std::optional<NormGradientSums> sums;
        if (a.with_sums)
            sums.emplace(x_norm, call.out[O::dx], x, call.out[O::x_dgamma], call.out[O::x_dbeta], call.out[O::x_sums]);
        run(reader, x_norm.read<T>(x), sums ? &*sums : nullptr);
    });
}

} // namespace rg::RG_GPU
