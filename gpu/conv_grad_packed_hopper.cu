// The weight gradient of a convolution with packed images (packed_images.cuh), for Hopper GPUs (sm_90a). Covers the
// same cases as conv_packed_hopper.cu.
//
// The sum of a product runs over cells, and dy is 0 in those that are no pixels. So a NaN or infinity in x makes the
// gradients of its channel not finite for all taps of its phase, even if no result uses the value. A warp copies tiles
// of cells to shared memory, and two groups of 128 threads multiply.
#include "gpu/conv.cuh"
#include "gpu/hopper.cuh"
#include "gpu/octets.cuh"
#include "gpu/packed_images.cuh"

#include <algorithm>

namespace rg::RG_GPU {

namespace {

constexpr int kGroup = 128, kConsumers = 2 * kGroup, kThreads = kConsumers + kGroup;
constexpr int kLargeTile = 128; // cells of a tile of dy

// Registers per thread. Consumers get more than at the launch, for their sums.
constexpr int kProducerRegisters = 72, kConsumerRegisters = 216;
static_assert(kProducerRegisters + 2 * kConsumerRegisters == 3 * kRegisters);

/// Holds the arguments of the kernel: extents, taps, and how cells are divided into tiles and stages of shared memory.
struct WeightGradient {
    CellLayout cells;
    int channels, values, out_c; // channels of a cell of x; values of a filter per tap; channels of dy
    int pitch, bias;             // values of a filter in a partial; the place of the bias among them
    int filters;                 // filters that a block computes
    int low;                     // the first cell of x in a tile, relative to that of dy
    // The phases of x that taps read. For each tap: its place in a filter, and where its operand starts in a stage of
    // x, divided by 16 bytes.
    int phases = 0, phase[kMaxPhases] = {};
    int taps = 0, place[kMaxTaps] = {}, start[kMaxTaps] = {};
    int tiles = 0, tile_cells = 0, x_cells = 0; // tiles; cells of a tile of dy, and of x, which has a halo
    int stages = 0, stage_bytes = 0;
    /// Divides the cells into tiles of this size.
    void set_tile(int size, const PackedTaps& all, int octets) {
        tile_cells = size, x_cells = size + all.max_offset - all.min_offset,
        tiles = (cells.count - 2 * cells.margin) / size;
        taps = all.count, phases = 0;
        for (int i = 0; i < all.phases; ++i) {
            if (all.empty(i)) continue;
            for (int tap = all.begin[i]; tap < all.begin[i + 1]; ++tap)
                place[tap] = all.place[tap], start[tap] = phases * octets * x_cells + all.offset[tap] - low;
            phase[phases++] = i;
        }
        stage_bytes = (filters / 8 * tile_cells + phases * octets * x_cells) * 16;
        stages = std::min(kMaxStages, kSharedBytes / stage_bytes);
    }
};

#ifdef RG_HOPPER

/// Starts all bulk copies of a block. One warp calls this.
template <int N>
__device__ __forceinline__ void produce(const WeightGradient& p, const bf16* dy, const bf16* x, std::byte* memory,
                                        const StageBarriers& barriers) {
    const int dy_octets = p.filters / 8, dy_bytes = p.tile_cells * 16, x_bytes = p.x_cells * 16;
    const int copies = dy_octets + p.phases * (N / 8);
    const int lane = int(threadIdx.x) % 32;
    PipelineState stage{p.stages};
    for (int tile = int(blockIdx.x); tile < p.tiles; tile += int(gridDim.x), stage.advance()) {
        std::byte* const to = memory + stage.index * p.stage_bytes;
        uint64_t* const full = barriers.full + stage.index;
        mbarrier_wait(barriers.empty + stage.index, stage.parity ^ 1);
        if (lane == 0) mbarrier_arrive_expect(full, p.stage_bytes);
        __syncwarp();
        const int cell = p.cells.margin + tile * p.tile_cells;
        for (int i = lane; i < copies; i += 32) {
            const int j = i - dy_octets, phase = max(j, 0) / (N / 8), octet = max(j, 0) % (N / 8);
            if (j < 0)
                bulk_copy(to + i * dy_bytes, dy + (size_t(int(blockIdx.z) * dy_octets + i) * p.cells.count + cell) * 8,
                          dy_bytes, full);
            else
                bulk_copy(
                    to + dy_octets * dy_bytes + j * x_bytes,
                    x + (size_t(p.phase[phase] * (p.channels / 8) + int(blockIdx.y) * (N / 8) + octet) * p.cells.count +
                         (cell + p.low)) *
                            8,
                    x_bytes, full);
        }
    }
}

/// The work of consumer group kIndex. For filters of up to 9 taps (row and column), group 0 computes the first 5 taps
/// and group 1 the others, of 64 filters. For 1 x 1 filters, each group computes 64 of up to 128 filters.
template <int kTaps, int N, int kIndex>
__device__ __forceinline__ void consume(const WeightGradient& p, const std::byte* memory, const uint4* ones,
                                        const StageBarriers& barriers, float* partials) {
    constexpr int kFirst = kTaps == 1 ? 0 : 5 * kIndex, kCount = kTaps == 1 ? 1 : 5 - kIndex;
    constexpr bool kBias = kTaps == 1 || kIndex == 0;
    const int first_filter = kTaps == 1 ? 64 * kIndex : 0; // index among the block's filters
    const bool takes_part = first_filter < p.filters && kFirst < p.taps;
    const int dy_bytes = p.filters / 8 * p.tile_cells * 16;
    float sums[kCount][N / 2] = {}, bias[4] = {};
    const uint64_t ones_descriptor = descriptor(ones, 0, 0); // the same 8 x 8 ones for all 16 cells
    PipelineState stage{p.stages};
    for (int tile = int(blockIdx.x); tile < p.tiles; tile += int(gridDim.x), stage.advance()) {
        const std::byte* const from = memory + stage.index * p.stage_bytes;
        mbarrier_wait(barriers.full + stage.index, stage.parity);
        if (takes_part) {
            const uint64_t dy = descriptor(from + first_filter / 8 * p.tile_cells * 16, 128, p.tile_cells * 16);
            const uint64_t x = descriptor(from + dy_bytes, 128, p.x_cells * 16);
            RG_UNROLL
            for (int tap = 0; tap < kCount; ++tap) wgmma_fence(sums[tap]);
            if constexpr (kBias) wgmma_fence(bias);
            RG_NO_UNROLL
            for (int cell = 0; cell < p.tile_cells; cell += 16) {
                RG_UNROLL
                for (int tap = 0; tap < kCount; ++tap)
                    wgmma_transposed(sums[tap], dy + unsigned(cell), x + unsigned(p.start[kFirst + tap] + cell));
                if constexpr (kBias) wgmma_transposed(bias, dy + unsigned(cell), ones_descriptor);
            }
            wgmma_commit();
            RG_UNROLL
            for (int tap = 0; tap < kCount; ++tap) wgmma_wait(sums[tap]);
            if constexpr (kBias) wgmma_wait(bias);
        }
        mbarrier_arrive_warp(barriers.empty + stage.index);
    }
    if (!takes_part) return;
    const int filter =
        int(blockIdx.z) * p.filters + first_filter + int(threadIdx.x) % kGroup / 32 * 16 + int(threadIdx.x) % 32 / 4;
    const int channel = int(blockIdx.y) * N + int(threadIdx.x) % 4 * 2;
    float* const partial = partials + (size_t(blockIdx.x) * p.out_c + filter) * p.pitch;
    RG_UNROLL
    for (int tap = 0; tap < kCount; ++tap) {
        if (kFirst + tap >= p.taps) continue;
        RG_UNROLL
        for (int i = 0; i < 2; ++i) RG_UNROLL
        for (int j = 0; j < N / 8; ++j) {
            float* const to = partial + i * 8 * p.pitch + p.place[kFirst + tap] * p.values + channel + 8 * j;
            const float first = sums[tap][4 * j + 2 * i], second = sums[tap][4 * j + 2 * i + 1];
            if constexpr (N == kSmallCell) {
                if (channel + 8 * j < p.values) to[0] = first;
                if (channel + 8 * j + 1 < p.values) to[1] = second;
            } else {
                *reinterpret_cast<float2*>(to) = make_float2(first, second);
            }
        }
    }
    if (kBias && blockIdx.y == 0 && threadIdx.x % 4 == 0)
        partial[p.bias] = bias[0], partial[8 * p.pitch + p.bias] = bias[2];
}

#endif // RG_HOPPER

/// Sums over the cells of each block's split, a set of tiles. Stores the sums to the partial of the split
/// (wgrad_pitch() in conv.cuh). The grid has splits x chunks of N input channels x chunks of filters.
template <int kTaps, int N>
__global__ void __launch_bounds__(kThreads, 1)
    conv2d_wgrad_packed_hopper_kernel(WeightGradient p, const bf16* dy, const bf16* x, float* __restrict__ partials) {
#ifdef RG_HOPPER
    DYNAMIC_SHARED(std::byte, memory);
    SHARED(uint64_t, full, kMaxStages);
    SHARED(uint64_t, empty, kMaxStages);
    SHARED(uint4, ones, 8);
    if (threadIdx.x < 8) store_operand(ones + threadIdx.x, select(false, uint4{}, 1));
    const StageBarriers barriers{full, empty};
    if (threadIdx.x == 0) barriers.init(p.stages, 1, kConsumers / 32);
    fence_proxy_async();
    __syncthreads();
    const int group = int(threadIdx.x) / kGroup;
    if (group == 2) {
        set_registers<kProducerRegisters>();
        if (threadIdx.x < kConsumers + 32) produce<N>(p, dy, x, memory, barriers);
    } else {
        set_registers<kConsumerRegisters>();
        if (group == 0)
            consume<kTaps, N, 0>(p, memory, ones, barriers, partials);
        else
            consume<kTaps, N, 1>(p, memory, ones, barriers, partials);
    }
#else
    __trap(); // the host does not launch this kernel on GPUs without the instructions of Hopper
#endif
}

/// Computes dw and db from packed images.
template <int kTaps, int N>
void run_wgrad(const ConvGeometry& g, const PackedPlan& plan, const bf16* dy, const bf16* x, const Tensor& dw,
               const Tensor& db) {
    const int filters = kTaps == 1 && g.to_c % 128 == 0 ? 128 : 64, bias = g.filter_values();
    WeightGradient p{plan.cells,        plan.channels, plan.values, g.to_c,
                     wgrad_pitch(bias), bias,          filters,     plan.taps.min_offset};
    p.set_tile(kLargeTile, plan.taps, N / 8);
    if (p.stages < 3) p.set_tile(kSmallTile, plan.taps, N / 8); // relatively more halo, but space for more stages
    RG_CHECK(p.stages > 0, "conv2d_grad: expected a stage of at most ", kSharedBytes, " bytes, got ", p.stage_bytes);
    const int in_chunks = plan.channels / N, out_chunks = g.to_c / p.filters;
    const int splits = std::clamp(gpu_traits().sm_count / (in_chunks * out_chunks), 1, p.tiles);
    const DeviceScratch<float> partials(size_t(splits) * size_t(g.to_c) * size_t(p.pitch));
    RG_LAUNCH((conv2d_wgrad_packed_hopper_kernel<kTaps, N>),
              dim3(unsigned(splits), unsigned(in_chunks), unsigned(out_chunks)), kThreads,
              size_t(p.stages * p.stage_bytes), stream(), p, dy, x, partials);
    reduce_wgrad(g, splits, partials, dw, db);
}

} // namespace

void wgrad_packed(const ConvGeometry& g, const PackedPlan& plan, const bf16* dy, const bf16* x, const Tensor& dw,
                  const Tensor& db) {
    const auto run = plan.channels == kSmallCell ? run_wgrad<kMaxTaps, kSmallCell>
                     : plan.taps.count > 1       ? run_wgrad<kMaxTaps, 64>
                     : g.from_c % 128 == 0       ? run_wgrad<1, 128>
                                                 : run_wgrad<1, 64>;
    run(g, plan, dy, x, dw, db);
}

} // namespace rg::RG_GPU
