// The weight gradient of a 3 x 3 convolution with stride 1 and padding 1, for Hopper GPUs (sm_90a). Covers bf16,
// multiples of 32 channels and filters, and images 8, 16 or 32 pixels wide whose height is a multiple of 8.
// conv_grad_packed_hopper.cu, conv_grad.cu, conv_groups.cu and linear.cu cover the other cases.
//
// Each SM runs at most one block at a time. A block computes the gradient of a chunk, which has C filters and C input
// channels, over some of the tiles of whole image rows. In a block, 128 producer threads load a tile of dy, and a tile
// of x with one more row above and below, into one of several stages in shared memory. They apply batch norm, ReLU or
// their gradient on load, once per loaded value instead of once for each of the 9 filter positions. Two consumer groups
// of 128 threads multiply the two tiles and keep the sums in registers until the block's tiles are done. The barriers
// full[stage] and empty[stage] tell consumers that a stage is loaded, and producers that it is free again.
//
// An octet is a group of 8 channels. The layouts in shared memory are:
//
//   x     [row][octet of input channels][pixel, with a zero pixel at either end][8 channels]
//   dy    [row][octet of filters][pixel][8 filters]
//
// Rows of a product are filters, columns are input channels, and the sum runs over 16 pixels, so both operands are
// transposed. A filter column s only changes the start address of x. The octets of an image row follow the octets of
// the row above. So the columns of a product cover all 3 rows of the filter. Each consumer group computes one outer
// column of the filter and half of the middle column.
//
// A product has 64 rows. If C is 32, these are the filters at a pixel and at the pixel below, and the columns cover 4
// rows of x. The two parts of a gradient, from the upper and the lower rows of dy, are added at the end with those of
// other blocks. A quarter of the results is not used.
//
// The bias gradient is a product of dy and ones. Each block stores partial sums, and conv_grad.cu adds them. For given
// shapes, the order of the sums depends only on the number of SMs, so a GPU gives the same bits in every run.
#include "gpu/conv.cuh"
#include "gpu/divisor.cuh"
#include "gpu/hopper.cuh"
#include "gpu/octets.cuh"

#include <algorithm>

namespace rg::RG_GPU {

namespace {

constexpr int kGroup = 128, kThreads = 3 * kGroup, kStages = 4;

/// A tile of a chunk of C filters and C input channels, for images W pixels wide.
template <int C, int W>
struct WgradHopperTile {
    static constexpr int kOctets = C / 8, kParts = 64 / C;   // octets of a chunk; parts of the 64 rows of a product
    static constexpr int kRows = C == 64 && W == 16 ? 4 : 8; // the loads of 8 would need too many registers
    // The octets of a row should begin in different banks. The 4 octets of 32 channels do so with W + 2 pixels each.
    // The 8 octets of 64 channels do so only with an odd number of pixels each.
    static constexpr int kOctetBytes = 16 * (C == 32 ? W + 2 : (W + 2) | 1), kRowBytes = kOctets * kOctetBytes;
    static constexpr int kXBytes = (kRows + 2) * kRowBytes, kStageBytes = kXBytes + kRows * kRowBytes;
    // The 16 pixels of a product are 16 of a row, or 8 of a row and 8 of the next row of the same part.
    static constexpr int kColumnStep = std::min(W, 16), kRowStep = 16 / kColumnStep * kParts;
    static constexpr int kNextPixels = W == 8 ? kParts * kRowBytes : 128; // bytes to the next 8 pixels
    static constexpr int kColumns = (kParts + 2) * C;                     // columns of a product
    // Registers per thread. Producers hold the loads of a tile in flight. Consumers hold up to 148 sums if C is 64, and
    // up to 100 if C is 32.
    static constexpr int kConsumerRegisters = C == 32 ? 128 : 176;
    static constexpr int kProducerRegisters = 3 * kRegisters - 2 * kConsumerRegisters;
};

struct WgradExtents {
    Divisor tiles_of_image;
    int tiles, in_c, out_c;                                                 // tiles in all images, channels of x and dy
    __host__ __device__ int pitch() const { return wgrad_pitch(9 * in_c); } // distance of two filters in a partial
};

#ifdef RG_HOPPER

// ---- producers -----------------------------------------------------------------------------------------------------

/// A producer thread's part of an operand: an octet of channels in a column of the image, in some rows of a tile. kHalo
/// is 1 if the operand has one more row above and below, and one more pixel at either end. load() starts the loads of a
/// tile. store() transforms and stores them; rows outside of the image are 0. There, load() reads a row inside instead:
/// with a branch around a load, the compiler would wait for one load before the next.
template <int C, int W, int kHalo, class Reader>
class TileLoader {
public:
    __device__ __forceinline__ TileLoader(const Reader& reader, int channels, int first_channel,
                                          const Divisor& tiles_of_image)
        : reader_(reader, first_channel + octet() * 8),
          channels_(channels),
          channel_(first_channel + octet() * 8),
          tiles_of_image_(tiles_of_image) {}
    __device__ __forceinline__ void load(int tile) {
        if constexpr (kHalo) above_ = tile % tiles_of_image_ > 0, below_ = (tile + 1) % tiles_of_image_ > 0;
        RG_UNROLL
        for (int pass = 0; pass < kPasses; ++pass) {
            const int row = min(row_of(pass), kAllRows - 1);
            const int nearest = inside(row) ? row : row == 0 ? 1 : T::kRows;
            loaded_[pass] = reader_.load(
                size_t((tile * T::kRows - kHalo + nearest) * W + column()) * unsigned(channels_) + unsigned(channel_));
        }
    }
    __device__ __forceinline__ void store(std::byte* operand) const {
        RG_UNROLL
        for (int pass = 0; pass < kPasses; ++pass)
            if (const int row = row_of(pass); row < kAllRows)
                store_operand(operand + row * T::kRowBytes + octet() * T::kOctetBytes + (column() + kHalo) * 16,
                              select(inside(row), reader_.transform(loaded_[pass]), 0));
    }

private:
    using T = WgradHopperTile<C, W>;
    static constexpr int kRowsPerPass = kGroup / (T::kOctets * W), kAllRows = T::kRows + 2 * kHalo;
    static constexpr int kPasses = (kAllRows + kRowsPerPass - 1) / kRowsPerPass;
    static __device__ __forceinline__ int octet() { return int(threadIdx.x) % T::kOctets; }
    static __device__ __forceinline__ int column() { return int(threadIdx.x) / T::kOctets % W; }
    static __device__ __forceinline__ int row_of(int pass) {
        return int(threadIdx.x) / (T::kOctets * W) % kRowsPerPass + pass * kRowsPerPass;
    }
    __device__ __forceinline__ bool inside(int row) const {
        return !kHalo || ((row > 0 || above_) && (row <= T::kRows || below_));
    }
    OctetReader<Reader> reader_;
    int channels_, channel_;
    const Divisor& tiles_of_image_;
    typename OctetReader<Reader>::Loaded loaded_[kPasses];
    bool above_ = false, below_ = false; // true if the image has a row above or below the tile
};

template <int C, int W, class DyReader, class XReader>
__device__ __forceinline__ void produce(const WgradExtents& extents, const DyReader& dy_reader, const XReader& x_reader,
                                        std::byte* stages, const StageBarriers& barriers) {
    using T = WgradHopperTile<C, W>;
    // The zero pixels left and right of the image are stored once and never change.
    for (int i = int(threadIdx.x); i < kStages * (T::kRows + 2) * T::kOctets * 2; i += kGroup) {
        const int row = i / (T::kOctets * 2) % (T::kRows + 2), stage = i / (T::kOctets * 2) / (T::kRows + 2);
        store_operand(stages + stage * T::kStageBytes + row * T::kRowBytes + i / 2 % T::kOctets * T::kOctetBytes +
                          i % 2 * (W + 1) * 16,
                      make_uint4(0, 0, 0, 0));
    }
    TileLoader<C, W, 1, XReader> x(x_reader, extents.in_c, int(blockIdx.y) * C, extents.tiles_of_image);
    TileLoader<C, W, 0, DyReader> dy(dy_reader, extents.out_c, int(blockIdx.z) * C, extents.tiles_of_image);
    x.load(int(blockIdx.x)), dy.load(int(blockIdx.x));
    for (int i = 0, tile = int(blockIdx.x); tile < extents.tiles; tile += int(gridDim.x), ++i) {
        std::byte* const stage = stages + i % kStages * T::kStageBytes;
        // Waits until consumers have freed the stage. At the first use of a stage, the wait returns at once.
        mbarrier_wait(barriers.empty + i % kStages, (i / kStages + 1) % 2);
        x.store(stage), dy.store(stage + T::kXBytes);
        fence_proxy_async();
        mbarrier_arrive_warp(barriers.full + i % kStages);
        if (const int next = tile + int(gridDim.x); next < extents.tiles) x.load(next), dy.load(next);
    }
}

// ---- consumers -----------------------------------------------------------------------------------------------------

/// Returns the place in `partials` for the sums of a consumer thread's first filter. Its second is 8 filters later.
template <int C>
__device__ __forceinline__ float* partial_of(const WgradExtents& extents, float* partials) {
    const int row = int(threadIdx.x) % kGroup / 32 * 16 + int(threadIdx.x) % 32 / 4, part = C == 64 ? 0 : row / C;
    return partials + (size_t(int(blockIdx.x) * (64 / C) + part) * extents.out_c + int(blockIdx.z) * C + row % C) *
                          extents.pitch();
}

/// Stores the sums of a product's columns from kFirst on, for column s of the filter.
template <int C, int kFirst, int K>
__device__ __forceinline__ void store_sums(const WgradExtents& extents, int s, const float (&sum)[K], float* partials) {
    float* const partial = partial_of<C>(extents, partials);
    const int part = C == 64 ? 0 : int(threadIdx.x) % kGroup / 64;
    RG_UNROLL
    for (int j = 0; j < K / 4; ++j) {
        const int r = (kFirst + 8 * j) / C - part;
        const int c = int(blockIdx.y) * C + (kFirst + 8 * j) % C + int(threadIdx.x) % 4 * 2;
        if (r < 0 || r > 2) continue;
        RG_UNROLL
        for (int i = 0; i < 2; ++i)
            *reinterpret_cast<float2*>(partial + i * 8 * extents.pitch() + (3 * r + s) * extents.in_c + c) =
                make_float2(sum[4 * j + 2 * i], sum[4 * j + 2 * i + 1]);
    }
}

/// The work of a thread of consumer group kIndex, 0 or 1. Consumer group 0 also computes the sums of this block for
/// the bias gradient.
template <int C, int W, int kIndex>
__device__ __forceinline__ void consume(const WgradExtents& extents, const std::byte* stages, const uint4* ones,
                                        const StageBarriers& barriers, float* partials) {
    using T = WgradHopperTile<C, W>;
    constexpr int kHalf = T::kColumns / 2;
    // Sums of column 2 kIndex of the filter, of half of the middle column, and of the bias
    float outer[T::kColumns / 2] = {}, middle[kHalf / 2] = {}, bias[4] = {};
    const uint64_t ones_descriptor = descriptor(ones, 0, 0); // the same 8 x 8 ones for all 16 pixels
    for (int i = 0, tile = int(blockIdx.x); tile < extents.tiles; tile += int(gridDim.x), ++i) {
        const std::byte* const stage = stages + i % kStages * T::kStageBytes;
        mbarrier_wait(barriers.full + i % kStages, i / kStages % 2);
        const uint64_t x = descriptor(stage, T::kNextPixels, T::kOctetBytes);
        const uint64_t dy = descriptor(stage + T::kXBytes, T::kNextPixels, T::kOctetBytes);
        wgmma_fence(outer);
        wgmma_fence(middle);
        if constexpr (kIndex == 0) wgmma_fence(bias);
        RG_UNROLL
        for (int row = 0; row < T::kRows; row += T::kRowStep) RG_UNROLL
        for (int column = 0; column < W; column += T::kColumnStep) {
            const auto offset = unsigned(row * T::kRowBytes / 16 + column);
            wgmma_transposed(outer, dy + offset, x + offset + unsigned(2 * kIndex));
            wgmma_transposed(middle, dy + offset, x + offset + unsigned(1 + kIndex * kHalf / 8 * T::kOctetBytes / 16));
            if constexpr (kIndex == 0) wgmma_transposed(bias, dy + offset, ones_descriptor);
        }
        wgmma_commit();
        wgmma_wait(outer);
        wgmma_wait(middle);
        if constexpr (kIndex == 0) wgmma_wait(bias);
        mbarrier_arrive_warp(barriers.empty + i % kStages);
    }
    store_sums<C, 0>(extents, 2 * kIndex, outer, partials);
    store_sums<C, kIndex * kHalf>(extents, 1, middle, partials);
    if (kIndex == 0 && blockIdx.y == 0 && threadIdx.x % 4 == 0) {
        float* const partial = partial_of<C>(extents, partials) + 9 * extents.in_c;
        partial[0] = bias[0], partial[8 * extents.pitch()] = bias[2];
    }
}

#endif // RG_HOPPER

/// Sums over the pixels of each block's split, a set of tiles. Stores the sums to partials (wgrad_pitch() in conv.cuh),
/// one for each split and part. The grid has splits x chunks of input channels x chunks of filters.
template <int C, int W, class DyReader, class XReader>
__global__ void __launch_bounds__(kThreads, 1)
    conv2d_wgrad_hopper_kernel(WgradExtents extents, DyReader dy, XReader x, float* __restrict__ partials) {
#ifdef RG_HOPPER
    DYNAMIC_SHARED(std::byte, stages);
    SHARED(uint64_t, full, kStages);
    SHARED(uint64_t, empty, kStages);
    SHARED(uint4, ones, 8);
    if (threadIdx.x < 8) store_operand(ones + threadIdx.x, select(false, uint4{}, 1));
    const StageBarriers barriers{full, empty};
    if (threadIdx.x == 0) barriers.init(kStages, kGroup / 32, 2 * (kGroup / 32));
    fence_proxy_async();
    __syncthreads();
    using T = WgradHopperTile<C, W>;
    const int group = int(threadIdx.x) / kGroup;
    if (group == 0) {
        set_registers<T::kProducerRegisters>();
        produce<C, W>(extents, dy, x, stages, barriers);
    } else {
        set_registers<T::kConsumerRegisters>();
        if (group == 1)
            consume<C, W, 0>(extents, stages, ones, barriers, partials);
        else
            consume<C, W, 1>(extents, stages, ones, barriers, partials);
    }
#else
    __trap(); // the host does not launch this kernel on GPUs without the instructions of Hopper
#endif
}

} // namespace

template <class DyReader, class XReader>
void wgrad_on_hopper(const ConvGeometry& g, const DyReader& dy, const XReader& x, const Tensor& dw, const Tensor& db) {
    const auto run = [&](auto channels, auto width) {
        constexpr int C = decltype(channels)::value, W = decltype(width)::value;
        const int tiles_of_image = g.from_h / WgradHopperTile<C, W>::kRows;
        const WgradExtents extents{Divisor(tiles_of_image), g.images * tiles_of_image, g.from_c, g.to_c};
        const int in_chunks = g.from_c / C, out_chunks = g.to_c / C;
        const int splits = std::clamp(gpu_traits().sm_count / (in_chunks * out_chunks), 1, extents.tiles);
        const int count = splits * WgradHopperTile<C, W>::kParts;
        const DeviceScratch<float> partials(size_t(count) * size_t(g.to_c) * size_t(extents.pitch()));
        RG_LAUNCH((conv2d_wgrad_hopper_kernel<C, W, DyReader, XReader>),
                  dim3(unsigned(splits), unsigned(in_chunks), unsigned(out_chunks)), kThreads,
                  kStages * WgradHopperTile<C, W>::kStageBytes, stream(), extents, dy, x, partials);
        reduce_wgrad(g, count, partials, dw, db);
    };
    const bool by_64 = g.from_c % 64 == 0 && g.to_c % 64 == 0;
    if (g.from_w == 32) run(Constant<32>{}, Constant<32>{}); // with 64 channels, the stages would be too large
    if (g.from_w == 16) by_64 ? run(Constant<64>{}, Constant<16>{}) : run(Constant<32>{}, Constant<16>{});
    if (g.from_w == 8) by_64 ? run(Constant<64>{}, Constant<8>{}) : run(Constant<32>{}, Constant<8>{});
}
template void wgrad_on_hopper(const ConvGeometry&, const Plain<bf16>&, const Plain<bf16>&, const Tensor&,
                              const Tensor&);
template void wgrad_on_hopper(const ConvGeometry&, const NormGradReader<bf16>&, const Plain<bf16>&, const Tensor&,
                              const Tensor&);
template void wgrad_on_hopper(const ConvGeometry&, const NormGradReader<bf16>&, const NormReader<bf16>&, const Tensor&,
                              const Tensor&);

} // namespace rg::RG_GPU
