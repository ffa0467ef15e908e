// Convolution and its data gradient with packed images (packed_images.cuh), for Hopper GPUs (sm_90a), for images up to
// some 500 pixels wide. Covers bf16 and multiples of 64 channels and filters, for 3 x 3 and 1 x 1 filters with strides
// of 1 and 2, and 3 x 3 filters for 24 and 32 channels. Also covers first layers, which have few input channels and
// need no data gradient: a row of their filters has at most 32 values, as in 7 x 7 filters of RGB images.
// conv_hopper.cu and conv_grad_hopper.cu are faster where conv_hopper.cu covers the case; conv.cu and conv_grad.cu
// cover all other cases.
//
// The rows of a product are consecutive cells. Those that are no pixels of the result are left out when a block stores
// its results. A warp copies cells and filters to shared memory, and two groups of 128 threads multiply.
//
//   staged cells     [octet][cell][8 channels]
//   staged filters   [octet of input channels][result channel][8 input channels], for one row and column of the filters
#include "gpu/conv.cuh"
#include "gpu/conv_choice.cuh"
#include "gpu/conv_results.cuh"
#include "gpu/hopper.cuh"
#include "gpu/lane_sums.cuh"

#include <algorithm>

namespace rg::RG_GPU {

namespace {

constexpr int kGroup = 128, kConsumers = 2 * kGroup, kThreads = kConsumers + 32;
constexpr int kHalfOfShared = (113 << 10) - kFixedBytes; // dynamic shared memory of a block if an SM runs two

/// The results of one phase: their rows and columns, and where they lie in the images of the tensor.
struct ResultPixels {
    int rows, columns, h, w, row_step, column_step, first_row, first_column;
    /// Returns the number of the cell's pixel in the tensor, or -1 if it has none.
    __device__ __forceinline__ int number(const CellLayout& cells, int cell) const {
        const CellPlace p(cells, cell);
        if (p.image >= cells.images || p.row >= rows || p.column >= columns) return -1;
        return (p.image * h + p.row * row_step + first_row) * w + p.column * column_step + first_column;
    }
    /// Returns the number of results in `count` cells from cell `first` on.
    __device__ __forceinline__ int within(const CellLayout& cells, int first, int count) const {
        return before(cells, first + count) - before(cells, first);
    }

private:
    __device__ __forceinline__ int before(const CellLayout& cells, int cell) const {
        const CellPlace p(cells, min(cell, cells.images * int(cells.per_image)));
        return (p.image * rows + min(p.row, rows)) * columns + (p.row < rows ? min(p.column, columns) : 0);
    }
};

/// A block computes kCells cells x N channels of the result, from C input channels at a time.
template <int C, int N>
struct PackedHopperTile {
    static constexpr int kOctets = C / 8;
    static constexpr int kCells = N <= 64 ? 256 : 128, kGroupCells = kCells / 2, kParts = kGroupCells / 64;
    static constexpr int kSlots = N <= 64 ? 6 : 3, kSlotBytes = C * N * 2; // slots of filters; bytes of a slot
    static_assert(kSlots * kSlotBytes <= kSlotsBytes);
    using Results = ResultTile<kCells, N, kConsumers>;
};

/// Holds the extents of a convolution or of its data gradient, for the kernel.
struct PackedConvolution {
    PackedPlan plan;
    int chunks, out_c;       // chunks of C input channels; channels of the result
    int stages, stage_cells; // number of stages; cells of a stage
    /// Returns the results of a phase. In the forward pass, the only phase has all results.
    template <bool kDgrad>
    __device__ ResultPixels results(int phase) const {
        if (!kDgrad) return {plan.out_h, plan.out_w, plan.out_h, plan.out_w, 1, 1, 0, 0};
        const int h = plan.cells.stride_h, w = plan.cells.stride_w, row = phase / w, column = phase - row * w;
        return {
            (plan.in_h - row + h - 1) / h, (plan.in_w - column + w - 1) / w, plan.in_h, plan.in_w, h, w, row, column};
    }
};

/// Returns the number of results of a partial (ConvEpilogue in conv_results.cuh) of the forward pass.
struct TileResults {
    PackedConvolution c;
    int cells; // cells of a tile
    __device__ double operator()(int block) const {
        return double(c.results<false>(0).within(c.plan.cells, block * cells, cells));
    }
};

#ifdef RG_HOPPER

/// Starts all bulk copies of a block. One thread calls this.
template <int C, int N, bool kDgrad>
__device__ __forceinline__ void produce(const PackedConvolution& c, const bf16* images, const bf16* filters,
                                        std::byte* slots, const StageBarriers& slot_barriers, std::byte* stages,
                                        const StageBarriers& stage_barriers) {
    using T = PackedHopperTile<C, N>;
    const PackedTaps& taps = c.plan.taps;
    const int first_cell =
        c.plan.cells.margin + int(blockIdx.x) * T::kCells + (kDgrad ? -taps.max_offset : taps.min_offset);
    PipelineState slot{T::kSlots}, stage{c.stages};
    const int begin = kDgrad ? int(blockIdx.z) : 0, end = kDgrad ? begin + 1 : taps.phases;
    for (int phase = begin; phase < end; ++phase) {
        if (taps.empty(phase)) continue;
        for (int chunk = 0; chunk < c.chunks; ++chunk) {
            const int octet = ((kDgrad ? 0 : phase) * c.chunks + chunk) * T::kOctets;
            mbarrier_wait(stage_barriers.empty + stage.index, stage.parity ^ 1);
            mbarrier_arrive_expect(stage_barriers.full + stage.index, T::kOctets * c.stage_cells * 16);
            for (int i = 0; i < T::kOctets; ++i)
                bulk_copy(stages + (stage.index * T::kOctets + i) * c.stage_cells * 16,
                          images + (size_t(octet + i) * c.plan.cells.count + first_cell) * 8, c.stage_cells * 16,
                          stage_barriers.full + stage.index);
            stage.advance();
            for (int tap = taps.begin[phase]; tap < taps.begin[phase + 1]; ++tap, slot.advance()) {
                const size_t from = size_t(int(blockIdx.y) * taps.count + taps.place[tap]) * c.chunks + chunk;
                mbarrier_wait(slot_barriers.empty + slot.index, slot.parity ^ 1);
                mbarrier_arrive_expect(slot_barriers.full + slot.index, T::kSlotBytes);
                bulk_copy(slots + slot.index * T::kSlotBytes, filters + from * (C * N), T::kSlotBytes,
                          slot_barriers.full + slot.index);
            }
        }
    }
}

/// Computes the results of one consumer thread. The cells (positions of the packed images) of its group of threads form
/// kParts parts; each part is a product of 64 cells x N channels.
template <int C, int N, bool kDgrad>
__device__ __forceinline__ void
consume(const PackedConvolution& c, const std::byte* slots, const StageBarriers& slot_barriers, const std::byte* stages,
        const StageBarriers& stage_barriers, float (&sum)[PackedHopperTile<C, N>::kParts][N / 2]) {
    using T = PackedHopperTile<C, N>;
    const PackedTaps& taps = c.plan.taps;
    // The shuffle shows the compiler that all lanes have the same value.
    const int group = __shfl_sync(kAllLanes, int(threadIdx.x) / kGroup, 0);
    const int first =
        group * T::kGroupCells - (kDgrad ? -taps.max_offset : taps.min_offset); // the group's first cell in a stage
    PipelineState slot{T::kSlots}, stage{c.stages};
    const int begin = kDgrad ? int(blockIdx.z) : 0, end = kDgrad ? begin + 1 : taps.phases;
    for (int phase = begin; phase < end; ++phase) {
        if (taps.empty(phase)) continue;
        for (int chunk = 0; chunk < c.chunks; ++chunk) {
            mbarrier_wait(stage_barriers.full + stage.index, stage.parity);
            const uint64_t cells =
                descriptor(stages + stage.index * T::kOctets * c.stage_cells * 16, c.stage_cells * 16, 128);
            for (int tap = taps.begin[phase]; tap < taps.begin[phase + 1]; ++tap, slot.advance()) {
                mbarrier_wait(slot_barriers.full + slot.index, slot.parity);
                const uint64_t filters = descriptor(slots + slot.index * T::kSlotBytes, N * 16, 128);
                const int cell = first + (kDgrad ? -taps.offset[tap] : taps.offset[tap]);
                RG_UNROLL
                for (int part = 0; part < T::kParts; ++part) wgmma_fence(sum[part]);
                RG_UNROLL
                for (int octet = 0; octet < T::kOctets; octet += 2) RG_UNROLL
                for (int part = 0; part < T::kParts; ++part)
                    wgmma(sum[part], cells + unsigned(cell + part * 64 + octet * c.stage_cells),
                          filters + unsigned(octet * N));
                wgmma_commit();
                RG_UNROLL
                for (int part = 0; part < T::kParts; ++part) wgmma_wait(sum[part]);
                mbarrier_arrive_warp(slot_barriers.empty + slot.index);
            }
            mbarrier_arrive_warp(stage_barriers.empty + stage.index);
            stage.advance();
        }
    }
}

/// The body of the two kernels below. They have two names so that profiles tell the forward pass from the data
/// gradient. The grid has tiles of cells x chunks of N result channels x, in the data gradient, phases.
template <int C, int N, bool kDgrad>
__device__ __forceinline__ void convolve(const PackedConvolution& c, const bf16* images, const bf16* filters,
                                         const ConvEpilogue<bf16>& e, bf16* __restrict__ out) {
    using T = PackedHopperTile<C, N>;
    DYNAMIC_SHARED(std::byte, memory); // slots of filters, then stages of cells; at the end, the results
    SHARED(uint64_t, barriers, 2 * (T::kSlots + kMaxStages));
    SHARED(int, numbers, T::kCells);
    const StageBarriers slots{barriers, barriers + T::kSlots};
    const StageBarriers stages{slots.empty + T::kSlots, slots.empty + T::kSlots + kMaxStages};
    const int thread = int(threadIdx.x), lane = thread % 32, first_cell = int(blockIdx.x) * T::kCells;
    const ResultPixels pixels = c.results<kDgrad>(int(blockIdx.z));
    if (thread < T::kCells) numbers[thread] = pixels.number(c.plan.cells, first_cell + thread);
    if (thread == 0) {
        slots.init(T::kSlots, 1, kConsumers / 32), stages.init(c.stages, 1, kConsumers / 32);
        fence_proxy_async();
    }
    __syncthreads();
    std::byte* const staged = memory + T::kSlots * T::kSlotBytes;
    float sum[T::kParts][N / 2] = {};
    if (thread == kConsumers)
        produce<C, N, kDgrad>(c, images, filters, memory, slots, staged, stages);
    else if (thread < kConsumers)
        consume<C, N, kDgrad>(c, memory, slots, staged, stages, sum);
    __syncthreads(); // both groups have read the last stage
    float* const results = reinterpret_cast<float*>(memory);
    if (thread < kConsumers) {
        const int row = thread / kGroup * T::kGroupCells + thread % kGroup / 32 * 16 + lane / 4;
        RG_UNROLL
        for (int part = 0; part < T::kParts; ++part) RG_UNROLL
        for (int i = 0; i < 2; ++i) RG_UNROLL
        for (int j = 0; j < N / 8; ++j)
            *reinterpret_cast<float2*>(results + (row + 64 * part + 8 * i) * T::Results::kPitch + 8 * j +
                                       lane % 4 * 2) =
                make_float2(sum[part][4 * j + 2 * i], sum[part][4 * j + 2 * i + 1]);
    }
    __syncthreads(); // the results are in shared memory
    T::Results::template finish<kDgrad>(
        e, c.out_c, int(blockIdx.y) * N, results, numbers,
        [&] { return pixels.within(c.plan.cells, first_cell, T::kCells); }, blockIdx.z * gridDim.x + blockIdx.x, out);
}

#else

/// Replaces convolve() on GPUs without the instructions of Hopper, where the host does not launch the kernels.
template <int C, int N, bool kDgrad, class... Arguments>
__device__ void convolve(const Arguments&...) {
    __trap();
}

#endif // RG_HOPPER

template <int C, int N>
__global__ void __launch_bounds__(kThreads, 2)
    conv2d_forward_packed_hopper_kernel(PackedConvolution c, const bf16* images, const bf16* filters,
                                        ConvEpilogue<bf16> e, bf16* __restrict__ out) {
    convolve<C, N, false>(c, images, filters, e, out);
}

template <int N>
__global__ void __launch_bounds__(kThreads, 2)
    conv2d_dgrad_packed_hopper_kernel(PackedConvolution c, const bf16* images, const bf16* filters,
                                      ConvEpilogue<bf16> e, bf16* __restrict__ out) {
    convolve<64, N, true>(c, images, filters, e, out);
}

/// Runs the convolution or its data gradient for packed images with `channels` channels.
template <int C, int N, bool kDgrad>
void run_conv2d(const ConvGeometry& g, const PackedPlan& plan, int channels, const bf16* images, const GivenFilters& w,
                ConvEpilogue<bf16> e, bf16* out, const ChannelReductions& reductions) {
    using T = PackedHopperTile<C, N>;
    const int stage_cells = T::kCells + plan.taps.max_offset - plan.taps.min_offset,
              stage_bytes = T::kOctets * stage_cells * 16;
    const int chunks = channels / C, slot_bytes = T::kSlots * T::kSlotBytes;
    // Lets an SM run two blocks if each can have two stages: then one computes while the other stores its results.
    const int fit = (kHalfOfShared - slot_bytes) / stage_bytes, most = (kSharedBytes - slot_bytes) / stage_bytes;
    const int uses = (kDgrad ? 1 : plan.taps.phases) * chunks;
    const int stages = std::min({uses, kMaxStages, std::max(fit, std::min(most, 2))});
    const int bytes = std::max(slot_bytes + stages * stage_bytes, T::Results::kBytes);
    RG_CHECK(stages > 0 && bytes <= kSharedBytes, "conv2d: ", stages, " stages do not fit into shared memory");
    const PackedConvolution c{plan, chunks, g.to_c, stages, stage_cells};
    const unsigned tiles = unsigned((plan.cells.count - 2 * plan.cells.margin) / T::kCells);
    const dim3 grid(tiles, blocks_for(g.to_c, N), kDgrad ? unsigned(plan.taps.phases) : 1);
    const DeviceScratch<float> partials(reductions ? size_t(tiles) * grid.z * 2 * size_t(g.to_c) : 0);
    if (reductions) e.partials = partials;
    if (reductions.sums) e.terms = reductions.sums->terms<bf16>();
    const DeviceScratch<bf16> filters = pack_filters<kDgrad>(plan, C, N, channels, int(grid.y) * N, w);
    if constexpr (kDgrad)
        RG_LAUNCH(conv2d_dgrad_packed_hopper_kernel<N>, grid, kThreads, size_t(bytes), stream(), c, images, filters, e,
                  out);
    else
        RG_LAUNCH((conv2d_forward_packed_hopper_kernel<C, N>), grid, kThreads, size_t(bytes), stream(), c, images,
                  filters, e, out);
    reductions.finish(partials, tiles * grid.z, TileResults{c, T::kCells}, g);
}

} // namespace

template <class Reader>
void convolve_packed(const ConvGeometry& g, const PackedPlan& plan, const Reader& reader, const GivenFilters& w,
                     const ConvEpilogue<bf16>& e, bf16* out, const ChannelReductions& reductions) {
    const DeviceScratch<bf16> x = pack_x(plan, g, reader);
    const auto run = plan.channels == kSmallCell ? run_conv2d<kSmallCell, 64, false>
                     : g.to_c % 128 == 0         ? run_conv2d<64, 128, false>
                                                 : run_conv2d<64, 64, false>;
    run(g, plan, plan.channels, x, w, e, out, reductions);
}
template void convolve_packed(const ConvGeometry&, const PackedPlan&, const Plain<bf16>&, const GivenFilters&,
                              const ConvEpilogue<bf16>&, bf16*, const ChannelReductions&);
template void convolve_packed(const ConvGeometry&, const PackedPlan&, const NormReader<bf16>&, const GivenFilters&,
                              const ConvEpilogue<bf16>&, bf16*, const ChannelReductions&);

template <class DyReader, class XReader>
void conv2d_grad_packed(const KernelChoice& choice, const DyReader& dy_reader, const XReader& x, const Call& call,
                        const NormGradientSums* sums) {
    using O = Conv2dGradOp;
    const auto& a = call.attrs.as<O>();
    const ConvGeometry& g = choice.g;
    const PackedPlan& plan = *choice.plan;
    const DeviceScratch<bf16> dy = pack_dy(plan, g, dy_reader);
    if (a.filters) wgrad_packed(g, plan, dy, pack_x(plan, g, x), call.out[O::dw], call.out[O::dbias]);
    if (!a.data) return;
    const Tensor &w = call.in[O::w], &dx = call.out[O::dx];
    const ConvGeometry of_dx = geometry_of(call.in[O::dy].shape(), dx.shape(), w, a.conv);
    const auto dgrad = plan.channels == kSmallCell ? run_conv2d<64, kSmallCell, true>
                       : g.from_c % 128 == 0       ? run_conv2d<64, 128, true>
                                                   : run_conv2d<64, 64, true>;
    dgrad(of_dx, plan, g.to_c, dy, w, {.addend = pointer<bf16>(call.in[O::addend])}, pointer<bf16>(dx), {{}, sums});
}
template void conv2d_grad_packed(const KernelChoice&, const Plain<bf16>&, const Plain<bf16>&, const Call&,
                                 const NormGradientSums*);
template void conv2d_grad_packed(const KernelChoice&, const NormGradReader<bf16>&, const Plain<bf16>&, const Call&,
                                 const NormGradientSums*);
template void conv2d_grad_packed(const KernelChoice&, const NormGradReader<bf16>&, const NormReader<bf16>&, const Call&,
                                 const NormGradientSums*);

} // namespace rg::RG_GPU
