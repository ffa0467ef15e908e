// Convolution and its gradients for Hopper GPUs (sm_90a), for images up to some 500 pixels wide. Covers bf16 and
// multiples of 64 channels and filters, for 3 x 3 and 1 x 1 filters with strides of 1 and 2. And first layers, which
// have few input channels: a row of their filters has at most 32 values, as in 7 x 7 filters of RGB images, and they
// need no data gradient. conv_hopper.cu and conv_grad_hopper.cu are faster where conv_hopper.cu covers the case;
// conv.cu and conv_grad.cu cover all other cases.
//
// Packed images. A kernel first brings the images into an order in which the others copy them in bulk. It applies batch
// norm, ReLU or their gradient once per value. An octet is a group of 8 channels:
//
//   packed images   [phase][octet of channels][cell][8 channels]
//
// A cell holds a pixel, or zeros around the images. The rows of all images follow each other. After each row come cells
// of zeros, which serve as the right padding of this row and as the left padding of the next; after each image come
// rows of zeros. So each row and column of the filters (tap) reads a cell at a fixed offset from the result's. With a
// stride, the pixels whose row and column leave the same remainders form a phase, which is packed like an image of its
// own. In a first layer, a cell holds no pixel, but all values of a row of x that the filters read for a result, as 32
// channels. So its filters have a single column.
//
// Products. The rows of a product are consecutive cells. Those that are no pixels of the result are left out when a
// block stores its results. A warp copies cells and filters to shared memory, and two groups of 128 threads multiply.
// In the weight gradient, the sum runs over cells, and dy is 0 in those that are no pixels. So a value of x that is not
// finite makes the gradients of all taps of its channel NaN, even if no filter reads the value.
//
//   staged cells     [octet][cell][8 channels]
//   staged filters   [octet of input channels][result channel][8 input channels], for one row and column of the filters
//
// The barriers full[i] and empty[i] tell consumers that stage i is loaded, and the producer that it is free again.
#include "ringgrad/gpu/conv.cuh"
#include "ringgrad/gpu/conv_results.cuh"
#include "ringgrad/gpu/divisor.cuh"
#include "ringgrad/gpu/hopper.cuh"
#include "ringgrad/gpu/lane_sums.cuh"
#include "ringgrad/gpu/octets.cuh"

#include <algorithm>
#include <optional>

namespace rg::RG_GPU {

namespace {

constexpr int kGroup = 128, kConsumers = 2 * kGroup, kThreads = kConsumers + 32;
constexpr int kFirstLayer = 32; // values of a cell in a first layer
constexpr int kMaxTaps = 9, kMaxPhases = 4, kMaxStages = 4;
/// The number of cells in a plane is a multiple of this, besides the cells at its ends.
constexpr int kCellStep = 256;
/// Cells of a tile of the weight gradient.
constexpr int kLargeTile = 128, kSmallTile = 64;
constexpr int kSlotsBytes = 48 << 10; // of the slots of filters, at most
// Dynamic shared memory of a block if an SM runs one or two. The arrays of fixed size take less than kFixedBytes.
constexpr int kFixedBytes = 2 << 10, kSharedBytes = (227 << 10) - kFixedBytes,
              kHalfOfShared = (113 << 10) - kFixedBytes;

// ---- geometry ------------------------------------------------------------------------------------------------------

/// The rows and columns of the filters (taps), sorted by phase. In the forward pass and in the weight gradient, a phase
/// is a set of pixels of x, and the result in cell i reads cell i + offset of the tap's phase. In the data gradient, it
/// is a set of pixels of dx, and their cell i reads cell i - offset of dy.
struct Taps {
    int count = 0, phases = 0, low = 0, high = 0; // the smallest and the largest offset, or 0
    int begin[kMaxPhases + 1] = {};               // of each phase in the arrays below
    int place[kMaxTaps] = {}, offset[kMaxTaps] = {};
    __host__ __device__ bool empty(int phase) const { return begin[phase] == begin[phase + 1]; }
};

/// The cells of a plane. It begins and ends with `margin` cells of zeros, where offsets lead. Cell 0 is the one after
/// the first of these margins.
struct Cells {
    Divisor per_image, per_row;
    int images, margin, count; // `count` includes the margins
    int stride_h, stride_w;
};

/// A convolution as packed.
struct Plan {
    Taps taps;
    Cells cells;
    bool first_layer;
    int channels, values; // of a cell; of a filter per tap, which in a first layer are fewer
    int in_h, in_w, out_h, out_w;
};

/// The taps of one axis, for images with `full` and results with `small` pixels along it.
struct AxisTaps {
    int phase[kMaxTaps], offset[kMaxTaps], low = 0, high = 0; // low, high: the smallest and the largest offset, or 0
    int length;                                               // cells, zeros included
    AxisTaps(int taps, int stride, int pad, int dilation, int full, int small) {
        for (int i = 0; i < taps; ++i) {
            const int position = i * dilation - pad;
            phase[i] = (position % stride + stride) % stride;
            offset[i] = (position - phase[i]) / stride;
            low = std::min(low, offset[i]), high = std::max(high, offset[i]);
        }
        length = std::max((full + stride - 1) / stride - low, small + high);
    }
};

/// Returns the plan of a convolution, for its gradients as well, or none if the kernels of this file do not cover it.
std::optional<Plan> find_plan(const Geometry& g) {
    const bool first_layer = g.in_c % 64 != 0, square = g.r == g.s && (g.r == 1 || g.r == 3);
    const bool covered =
        first_layer ? g.r <= kMaxTaps && g.s * g.in_c <= kFirstLayer && g.dilation.w == 1 : square && g.stride.w <= 2;
    if (!gpu_traits().hopper_kernels || !covered || g.out_c % 64 != 0 || g.stride.h > 2) return {};
    const AxisTaps rows(g.r, g.stride.h, g.pad.h, g.dilation.h, g.in_h, g.out_h);
    const AxisTaps columns = first_layer ? AxisTaps(1, 1, 0, 1, g.out_w, g.out_w)
                                         : AxisTaps(g.s, g.stride.w, g.pad.w, g.dilation.w, g.in_w, g.out_w);
    // Many zeros would cost more than these kernels gain.
    const double pixels = std::max(double(g.pixels()), double(g.images) * g.in_h * g.in_w / g.stride.h / g.stride.w);
    const double all_cells = double(g.images) * rows.length * columns.length;
    if (g.pixels() == 0 || all_cells > 4 * pixels || all_cells > 1 << 28) return {};

    const int filter_columns = first_layer ? 1 : g.s, stride_w = first_layer ? 1 : g.stride.w;
    Taps taps;
    taps.phases = g.stride.h * stride_w;
    int used_phases = 0;
    for (int phase = 0; phase < taps.phases; ++phase) {
        for (int r = 0; r < g.r; ++r)
            for (int s = 0; s < filter_columns; ++s) {
                if (rows.phase[r] * stride_w + columns.phase[s] != phase) continue;
                taps.place[taps.count] = r * filter_columns + s;
                taps.offset[taps.count] = rows.offset[r] * columns.length + columns.offset[s];
                taps.low = std::min(taps.low, taps.offset[taps.count]);
                taps.high = std::max(taps.high, taps.offset[taps.count]);
                ++taps.count;
            }
        taps.begin[phase + 1] = taps.count;
        used_phases += !taps.empty(phase);
    }
    // In each kernel, at least one stage must fit into shared memory.
    const int halo = taps.high - taps.low;
    if (halo > kSharedBytes / 128 || kSlotsBytes + 128 * (256 + halo) > kSharedBytes ||
        8192 + used_phases * 128 * (kSmallTile + halo) > kSharedBytes)
        return {};
    const int margin = std::max(-taps.low, taps.high);
    const int count = (int(all_cells) + kCellStep - 1) / kCellStep * kCellStep + 2 * margin;
    return Plan{
        taps,
        {Divisor(rows.length * columns.length), Divisor(columns.length), g.images, margin, count, g.stride.h, stride_w},
        first_layer,
        first_layer ? kFirstLayer : g.in_c,
        g.taps() / taps.count,
        g.in_h,
        g.in_w,
        g.out_h,
        g.out_w};
}

/// The pixel of a cell, within its phase.
struct CellPixel {
    int image, row, column;
    __device__ __forceinline__ CellPixel(const Cells& cells, int cell) {
        image = cell / cells.per_image;
        const int in_image = cell - image * cells.per_image;
        row = in_image / cells.per_row;
        column = in_image - row * cells.per_row;
    }
};

/// The results of one phase: their rows and columns, and where they lie in the images of the tensor.
struct ResultPixels {
    int rows, columns, h, w, row_step, column_step, first_row, first_column;
    /// Returns the number of the cell's pixel in the tensor, or -1 if it has none.
    __device__ __forceinline__ int number(const Cells& cells, int cell) const {
        const CellPixel p(cells, cell);
        if (p.image >= cells.images || p.row >= rows || p.column >= columns) return -1;
        return (p.image * h + p.row * row_step + first_row) * w + p.column * column_step + first_column;
    }
    /// Returns the number of results in `count` cells from cell `first` on.
    __device__ __forceinline__ int within(const Cells& cells, int first, int count) const {
        return before(cells, first + count) - before(cells, first);
    }

private:
    __device__ __forceinline__ int before(const Cells& cells, int cell) const {
        const CellPixel p(cells, min(cell, cells.images * int(cells.per_image)));
        return (p.image * rows + min(p.row, rows)) * columns + (p.row < rows ? min(p.column, columns) : 0);
    }
};

// ---- packing -------------------------------------------------------------------------------------------------------

/// Packs images h x w with `channels` channels. Bit i of `phases` is set if phase i is needed. A block packs 64
/// channels of 256 cells; the grid has blocks of cells x groups of channels x phases.
template <class Reader>
__global__ void __launch_bounds__(256)
    conv2d_pack_hopper_kernel(Cells cells, unsigned phases, int h, int w, int channels, Reader reader, bf16* packed) {
    constexpr int kOctets = 8, kStep = 256 / kOctets, kBatch = 4;
    const int phase = int(blockIdx.z);
    if (!(phases >> phase & 1)) return;
    const int octet = int(blockIdx.y) * kOctets + int(threadIdx.x) % kOctets;
    const OctetReader<Reader> octet_reader(reader, 8 * octet);
    uint4* const to = reinterpret_cast<uint4*>(packed) + (size_t(phase) * (channels / 8) + octet) * cells.count;
    const int first_row = phase / cells.stride_w, first_column = phase - first_row * cells.stride_w;
    const int row_step = gridDim.z > 1 ? cells.stride_h : 1, column_step = gridDim.z > 1 ? cells.stride_w : 1;
    const int begin = int(blockIdx.x) * 256 + int(threadIdx.x) / kOctets;
    RG_NO_UNROLL
    for (int i = 0; i < 256; i += kBatch * kStep) {
        typename OctetReader<Reader>::Loaded loaded[kBatch];
        bool inside[kBatch];
        RG_UNROLL
        for (int j = 0; j < kBatch; ++j) {
            const int cell = begin + i + j * kStep - cells.margin;
            const CellPixel p(cells, max(cell, 0));
            const int row = p.row * row_step + first_row, column = p.column * column_step + first_column;
            inside[j] = cell >= 0 && p.image < cells.images && row < h && column < w;
            // Elsewhere, loads the first pixel, since the compiler would wait for a load in a branch.
            const size_t pixel = inside[j] ? (size_t(p.image) * h + row) * w + column : 0;
            loaded[j] = octet_reader.load(pixel * channels + 8 * octet);
        }
        RG_UNROLL
        for (int j = 0; j < kBatch; ++j)
            if (const int cell = begin + i + j * kStep; cell < cells.count)
                to[cell] = choose(inside[j], octet_reader.transform(loaded[j]), 0);
    }
}

/// The images of a first layer, which have h rows of `row` values. For result column i, the filters read `values`
/// values of a row, from value i * step - pad on.
struct FirstLayer {
    const bf16* x;
    int h, row, values, step, pad;
};

/// Packs the images of a first layer. Bit i of `phases` is set if phase i is needed. A block packs 256 cells; the grid
/// has blocks of cells x 1 x phases.
__global__ void __launch_bounds__(256)
    conv2d_pack_first_hopper_kernel(Cells cells, unsigned phases, FirstLayer layer, uint4* packed) {
    constexpr int kOctets = kFirstLayer / 8;
    const int phase = int(blockIdx.z), octet = int(threadIdx.x) % kOctets;
    if (!(phases >> phase & 1)) return;
    for (int i = int(threadIdx.x) / kOctets; i < 256; i += 256 / kOctets) {
        const int cell = int(blockIdx.x) * 256 + i;
        if (cell >= cells.count) continue;
        const CellPixel p(cells, max(cell - cells.margin, 0));
        const int row = p.row * cells.stride_h + phase, first = p.column * layer.step - layer.pad;
        const bool inside = cell >= cells.margin && p.image < cells.images && row < layer.h;
        const bf16* const from = layer.x + (size_t(p.image) * layer.h + row) * layer.row;
        float v[8];
        RG_UNROLL
        for (int j = 0; j < 8; ++j) {
            const int value = 8 * octet + j, at = first + value;
            v[j] = inside && value < layer.values && at >= 0 && at < layer.row ? load(from + at) : 0;
        }
        packed[(size_t(phase) * kOctets + octet) * cells.count + cell] = pack_8(v);
    }
}

/// Packs filters w [k][taps][values] to [chunk of n results][tap][chunk of c channels][octet of them][result][8
/// channels]. In the forward pass, results are the k filters; in the data gradient, they are the values, and k the
/// channels.
template <bool kDgrad, class Given>
__global__ void conv2d_pack_filters_hopper_kernel(int count, int n, int taps, int chunks, int c, int values,
                                                  const Given* w, uint4* packed) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= count) return;
    const int octets = c / 8, octet = i / n % octets, chunk = i / (n * octets) % chunks;
    const int tap = i / (n * octets * chunks) % taps;
    const int result = i / (n * octets * chunks * taps) * n + i % n, channel = chunk * c + octet * 8;
    float v[8];
    RG_UNROLL
    for (int j = 0; j < 8; ++j)
        if constexpr (kDgrad)
            v[j] = load(w + (size_t(channel + j) * taps + tap) * values + result);
        else
            v[j] = channel + j < values ? load(w + (size_t(result) * taps + tap) * values + channel + j) : 0;
    packed[i] = pack_8(v);
}

/// Provides the packed dy.
class PackedDy {
public:
    template <class Reader>
    PackedDy(const Plan& plan, const Geometry& g, const Reader& reader)
        : data_(size_t(g.out_c) * size_t(plan.cells.count)) {
        RG_LAUNCH(conv2d_pack_hopper_kernel<Reader>, dim3(blocks_for(plan.cells.count, 256), unsigned(g.out_c / 64)),
                  256, 0, stream(), plan.cells, 1u, g.out_h, g.out_w, g.out_c, reader, data_);
    }
    operator const bf16*() const { return data_; }

private:
    Scratch<bf16> data_;
};

/// Provides the packed x.
class PackedX {
public:
    template <class Reader>
    PackedX(const Plan& plan, const Geometry& g, const Reader& reader)
        : data_(size_t(plan.taps.phases) * size_t(plan.channels) * size_t(plan.cells.count)) {
        unsigned phases = 0;
        for (int i = 0; i < plan.taps.phases; ++i) phases |= unsigned(!plan.taps.empty(i)) << i;
        const unsigned cells = blocks_for(plan.cells.count, 256), z = unsigned(plan.taps.phases);
        if constexpr (std::is_same_v<Reader, Plain<bf16>>)
            if (plan.first_layer) {
                const FirstLayer layer{reader.x,        g.in_h, g.in_w * g.in_c, plan.values, g.stride.w * g.in_c,
                                       g.pad.w * g.in_c};
                RG_LAUNCH(conv2d_pack_first_hopper_kernel, dim3(cells, 1, z), 256, 0, stream(), plan.cells, phases,
                          layer, reinterpret_cast<uint4*>(data_.data()));
                return;
            }
        RG_LAUNCH(conv2d_pack_hopper_kernel<Reader>, dim3(cells, unsigned(g.in_c / 64), z), 256, 0, stream(),
                  plan.cells, phases, g.in_h, g.in_w, g.in_c, reader, data_);
    }
    operator const bf16*() const { return data_; }

private:
    Scratch<bf16> data_;
};

/// Provides the packed filters for chunks of c input channels and n results.
template <bool kDgrad>
class PackedFilters {
public:
    PackedFilters(const Plan& plan, int c, int n, int channels, int results, const GivenFilters& w)
        : data_(size_t(plan.taps.count) * size_t(channels) * size_t(results)) {
        const int count = plan.taps.count * channels / 8 * results;
        const auto pack = [&](auto* given) {
            RG_LAUNCH((conv2d_pack_filters_hopper_kernel<kDgrad, std::decay_t<decltype(*given)>>),
                      blocks_for(count, 256), 256, 0, stream(), count, n, plan.taps.count, channels / c, c, plan.values,
                      given, reinterpret_cast<uint4*>(data_.data()));
        };
        w.f32 ? pack(w.f32) : pack(w.rounded);
    }
    operator const bf16*() const { return data_; }

private:
    Scratch<bf16> data_;
};

// ---- the forward pass and the data gradient ------------------------------------------------------------------------

/// A stage or slot of a ring, and the parity of the barriers' phase when it is used.
struct Ring {
    int size, index = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++index == size) index = 0, parity ^= 1;
    }
};

/// A block computes kCells cells x N channels of the result, from C input channels at a time.
template <int C, int N>
struct Tile {
    static constexpr int kOctets = C / 8;
    static constexpr int kCells = N == 64 ? 256 : 128, kGroupCells = kCells / 2, kParts = kGroupCells / 64;
    static constexpr int kSlots = N == 64 ? 6 : 3, kSlotBytes = C * N * 2; // of filters
    static_assert(kSlots * kSlotBytes <= kSlotsBytes);
    using Results = ResultTile<kCells, N, kConsumers>;
};

/// Holds the extents of a convolution or of its data gradient, for the kernel.
struct Convolution {
    Plan plan;
    int chunks, out_c;       // of C input channels; channels of the result
    int stages, stage_cells; // staged cells
    /// Returns the results of a phase; in the forward pass, there is one.
    template <bool kDgrad>
    __device__ ResultPixels results(int phase) const {
        if (!kDgrad) return {plan.out_h, plan.out_w, plan.out_h, plan.out_w, 1, 1, 0, 0};
        const int h = plan.cells.stride_h, w = plan.cells.stride_w, row = phase / w, column = phase - row * w;
        return {
            (plan.in_h - row + h - 1) / h, (plan.in_w - column + w - 1) / w, plan.in_h, plan.in_w, h, w, row, column};
    }
};

/// Returns the number of results of a partial (Epilogue in conv_results.cuh) of the forward pass.
struct TileResults {
    Convolution c;
    int cells; // of a tile
    __device__ double operator()(int block) const {
        return double(c.results<false>(0).within(c.plan.cells, block * cells, cells));
    }
};

#ifdef RG_HOPPER

struct Barriers {
    uint64_t *full, *empty;
};

/// Starts all copies of a block, by one thread.
template <int C, int N, bool kDgrad>
__device__ __forceinline__ void produce(const Convolution& c, const bf16* images, const bf16* filters, std::byte* slots,
                                        const Barriers& slot_barriers, std::byte* stages,
                                        const Barriers& stage_barriers) {
    using T = Tile<C, N>;
    const Taps& taps = c.plan.taps;
    const int first_cell = c.plan.cells.margin + int(blockIdx.x) * T::kCells + (kDgrad ? -taps.high : taps.low);
    Ring slot{T::kSlots}, stage{c.stages};
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

/// Computes the sums of a thread of a consumer group. Each of the group's parts is a product of 64 cells x N channels.
template <int C, int N, bool kDgrad>
__device__ __forceinline__ void consume(const Convolution& c, const std::byte* slots, const Barriers& slot_barriers,
                                        const std::byte* stages, const Barriers& stage_barriers,
                                        float (&sum)[Tile<C, N>::kParts][N / 2]) {
    using T = Tile<C, N>;
    const Taps& taps = c.plan.taps;
    // The shuffle shows the compiler that all lanes have the same value.
    const int group = __shfl_sync(kAllLanes, int(threadIdx.x) / kGroup, 0), lane = int(threadIdx.x) % 32;
    const int first = group * T::kGroupCells - (kDgrad ? -taps.high : taps.low); // of the group's cells in a stage
    const auto arrive = [&](uint64_t* barrier) {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(barrier);
    };
    Ring slot{T::kSlots}, stage{c.stages};
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
                arrive(slot_barriers.empty + slot.index);
            }
            arrive(stage_barriers.empty + stage.index);
            stage.advance();
        }
    }
}

/// The body of the two kernels below, which have two names so that profiles show the direction. The grid has tiles of
/// cells x chunks of N result channels x, in the data gradient, phases.
template <int C, int N, bool kDgrad>
__device__ __forceinline__ void convolve(const Convolution& c, const bf16* images, const bf16* filters,
                                         const Epilogue<bf16>& e, bf16* __restrict__ out) {
    using T = Tile<C, N>;
    DYNAMIC_SHARED(std::byte, memory); // slots of filters, then stages of cells; at the end, the results
    SHARED(uint64_t, barriers, 2 * (T::kSlots + kMaxStages));
    SHARED(int, numbers, T::kCells);
    const Barriers slots{barriers, barriers + T::kSlots};
    const Barriers stages{slots.empty + T::kSlots, slots.empty + T::kSlots + kMaxStages};
    const int thread = int(threadIdx.x), lane = thread % 32, first_cell = int(blockIdx.x) * T::kCells;
    const ResultPixels pixels = c.results<kDgrad>(int(blockIdx.z));
    if (thread < T::kCells) numbers[thread] = pixels.number(c.plan.cells, first_cell + thread);
    if (thread == 0) {
        for (int i = 0; i < T::kSlots; ++i) mbarrier_init(slots.full + i, 1), mbarrier_init(slots.empty + i, 8);
        for (int i = 0; i < c.stages; ++i) mbarrier_init(stages.full + i, 1), mbarrier_init(stages.empty + i, 8);
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
    conv2d_forward_packed_hopper_kernel(Convolution c, const bf16* images, const bf16* filters, Epilogue<bf16> e,
                                        bf16* __restrict__ out) {
    convolve<C, N, false>(c, images, filters, e, out);
}

template <int N>
__global__ void __launch_bounds__(kThreads, 2)
    conv2d_dgrad_packed_hopper_kernel(Convolution c, const bf16* images, const bf16* filters, Epilogue<bf16> e,
                                      bf16* __restrict__ out) {
    convolve<64, N, true>(c, images, filters, e, out);
}

/// Runs the convolution or its data gradient for packed images with `channels` channels.
template <int C, int N, bool kDgrad>
void run_conv2d(const Geometry& g, const Plan& plan, int channels, const bf16* images, const GivenFilters& w,
                Epilogue<bf16> e, bf16* out, const ChannelReductions& reductions) {
    using T = Tile<C, N>;
    const int stage_cells = T::kCells + plan.taps.high - plan.taps.low, stage_bytes = T::kOctets * stage_cells * 16;
    const int chunks = channels / C, slot_bytes = T::kSlots * T::kSlotBytes;
    // Two blocks per SM if each can have two stages, since one then computes while the other stores its results.
    const int fit = (kHalfOfShared - slot_bytes) / stage_bytes, most = (kSharedBytes - slot_bytes) / stage_bytes;
    const int uses = (kDgrad ? 1 : plan.taps.phases) * chunks;
    const int stages = std::min({uses, kMaxStages, std::max(fit, std::min(most, 2))});
    const int bytes = std::max(slot_bytes + stages * stage_bytes, T::Results::kBytes);
    RG_CHECK(stages > 0 && bytes <= kSharedBytes, "conv2d: ", stages, " stages do not fit into shared memory");
    const Convolution c{plan, chunks, g.out_c, stages, stage_cells};
    const unsigned tiles = unsigned((plan.cells.count - 2 * plan.cells.margin) / T::kCells);
    const dim3 grid(tiles, unsigned(g.out_c / N), kDgrad ? unsigned(plan.taps.phases) : 1);
    const Scratch<float> partials(reductions ? size_t(tiles) * grid.z * 2 * size_t(g.out_c) : 0);
    if (reductions) e.partials = partials;
    if (reductions.sums) e.terms = reductions.sums->terms<bf16>();
    const PackedFilters<kDgrad> filters(plan, C, N, channels, g.out_c, w);
    if constexpr (kDgrad)
        RG_LAUNCH(conv2d_dgrad_packed_hopper_kernel<N>, grid, kThreads, size_t(bytes), stream(), c, images, filters, e,
                  out);
    else
        RG_LAUNCH((conv2d_forward_packed_hopper_kernel<C, N>), grid, kThreads, size_t(bytes), stream(), c, images,
                  filters, e, out);
    reductions.finish(partials, tiles * grid.z, TileResults{c, T::kCells}, g);
}

// ---- the weight gradient -------------------------------------------------------------------------------------------

// Registers belong to groups of 128 threads. At launch, all threads have 168. Consumers then get more, for their sums.
constexpr int kGradThreads = kConsumers + kGroup, kProducerRegisters = 72, kConsumerRegisters = 216;
static_assert(kProducerRegisters + 2 * kConsumerRegisters == 3 * 168);

/// Holds the extents of a weight gradient, for the kernel.
struct WeightGradient {
    Cells cells;
    int channels, values, out_c; // of a cell of x; of a filter per tap (Plan); of dy
    int pitch, bias;             // values of a filter in a partial; the place of the bias among them
    int filters;                 // of a block
    int low;                     // the first cell of x in a tile, relative to that of dy
    // The phases of x that taps read; for each tap, its place in a filter, and the start of its operand in a stage of x
    // in units of 16 bytes
    int phases = 0, phase[kMaxPhases] = {};
    int taps = 0, place[kMaxTaps] = {}, start[kMaxTaps] = {};
    int tiles = 0, tile_cells = 0, x_cells = 0; // tiles; cells of a tile of dy, and of x, which has a halo
    int stages = 0, stage_bytes = 0;
    /// Divides the cells into tiles of this size.
    void set_tile(int size, const Taps& all, int octets) {
        tile_cells = size, x_cells = size + all.high - all.low, tiles = (cells.count - 2 * cells.margin) / size;
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

/// Starts all copies of a block, by one warp.
template <int N>
__device__ __forceinline__ void produce(const WeightGradient& p, const bf16* dy, const bf16* x, std::byte* memory,
                                        const Barriers& barriers) {
    const int dy_octets = p.filters / 8, dy_bytes = p.tile_cells * 16, x_bytes = p.x_cells * 16;
    const int copies = dy_octets + p.phases * (N / 8);
    const int lane = int(threadIdx.x) % 32;
    Ring stage{p.stages};
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

/// The work of consumer group kIndex. With 9 taps, group 0 computes the first 5 of them and group 1 the others, for 64
/// filters. With one tap, each group computes 64 of up to 128 filters.
template <int kTaps, int N, int kIndex>
__device__ __forceinline__ void consume(const WeightGradient& p, const std::byte* memory, const uint4* ones,
                                        const Barriers& barriers, float* partials) {
    constexpr int kFirst = kTaps == 1 ? 0 : 5 * kIndex, kCount = kTaps == 1 ? 1 : 5 - kIndex;
    constexpr bool kBias = kTaps == 1 || kIndex == 0;
    const int first_filter = kTaps == 1 ? 64 * kIndex : 0; // of the block's
    const bool takes_part = first_filter < p.filters && kFirst < p.taps;
    const int dy_bytes = p.filters / 8 * p.tile_cells * 16;
    float sums[kCount][N / 2] = {}, bias[4] = {};
    const uint64_t ones_descriptor = descriptor(ones, 0, 0); // the same 8 x 8 ones for all 16 cells
    Ring stage{p.stages};
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
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(barriers.empty + stage.index);
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
            if constexpr (N == kFirstLayer) {
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

/// Stores sums over the cells of some tiles to the partial (conv.cuh) of each split. The grid has splits x chunks of N
/// input channels x chunks of filters.
template <int kTaps, int N>
__global__ void __launch_bounds__(kGradThreads, 1)
    conv2d_wgrad_packed_hopper_kernel(WeightGradient p, const bf16* dy, const bf16* x, float* __restrict__ partials) {
#ifdef RG_HOPPER
    DYNAMIC_SHARED(std::byte, memory);
    SHARED(uint64_t, full, kMaxStages);
    SHARED(uint64_t, empty, kMaxStages);
    SHARED(uint4, ones, 8);
    if (threadIdx.x < 8) store_operand(ones + threadIdx.x, choose(false, uint4{}, 1));
    if (threadIdx.x == 0)
        for (int i = 0; i < p.stages; ++i) mbarrier_init(full + i, 1), mbarrier_init(empty + i, 8);
    fence_proxy_async();
    __syncthreads();
    const Barriers barriers{full, empty};
    const int group = int(threadIdx.x) / kGroup;
    if (group == 2) {
        decrease_registers<kProducerRegisters>();
        if (threadIdx.x < kConsumers + 32) produce<N>(p, dy, x, memory, barriers);
    } else {
        increase_registers<kConsumerRegisters>();
        if (group == 0)
            consume<kTaps, N, 0>(p, memory, ones, barriers, partials);
        else
            consume<kTaps, N, 1>(p, memory, ones, barriers, partials);
    }
#else
    __trap(); // the host does not launch this kernel on GPUs without the instructions of Hopper
#endif
}

/// Computes dw and db.
template <int kTaps, int N, class XReader>
void run_wgrad(const Geometry& g, const Plan& plan, const bf16* dy, const XReader& x_reader, const Tensor& dw,
               const Tensor& db) {
    const int filters = kTaps == 1 && g.out_c % 128 == 0 ? 128 : 64, taps = g.taps();
    WeightGradient p{plan.cells, plan.channels, plan.values, g.out_c, wgrad_pitch(taps), taps, filters, plan.taps.low};
    p.set_tile(kLargeTile, plan.taps, N / 8);
    if (p.stages < 3) p.set_tile(kSmallTile, plan.taps, N / 8); // relatively more halo, but space for more stages
    RG_CHECK(p.stages > 0, "conv2d_grad: expected a stage of at most ", kSharedBytes, " bytes, got ", p.stage_bytes);
    const int in_chunks = plan.channels / N, out_chunks = g.out_c / p.filters;
    const int splits = std::clamp(gpu_traits().sm_count / (in_chunks * out_chunks), 1, p.tiles);
    const Scratch<float> partials(size_t(splits) * size_t(g.out_c) * size_t(p.pitch));
    const PackedX x(plan, g, x_reader);
    RG_LAUNCH((conv2d_wgrad_packed_hopper_kernel<kTaps, N>),
              dim3(unsigned(splits), unsigned(in_chunks), unsigned(out_chunks)), kGradThreads,
              size_t(p.stages * p.stage_bytes), stream(), p, dy, x, partials);
    reduce_wgrad(g, splits, partials, dw, db);
}

} // namespace

template <class Reader>
bool convolve_packed(const Geometry& g, const Reader& reader, const GivenFilters& w, const Epilogue<bf16>& e, bf16* out,
                     const ChannelReductions& reductions) {
    const std::optional<Plan> found = find_plan(g);
    if (!found || (found->first_layer && !std::is_same_v<Reader, Plain<bf16>>)) return false;
    const Plan& plan = *found;
    const PackedX x(plan, g, reader);
    const auto run = plan.first_layer     ? run_conv2d<kFirstLayer, 64, false>
                     : g.out_c % 128 == 0 ? run_conv2d<64, 128, false>
                                          : run_conv2d<64, 64, false>;
    run(g, plan, plan.channels, x, w, e, out, reductions);
    return true;
}
template bool convolve_packed(const Geometry&, const Plain<bf16>&, const GivenFilters&, const Epilogue<bf16>&, bf16*,
                              const ChannelReductions&);
template bool convolve_packed(const Geometry&, const Normalised<bf16>&, const GivenFilters&, const Epilogue<bf16>&,
                              bf16*, const ChannelReductions&);

template <class DyReader, class XReader>
bool conv2d_grad_packed(const Geometry& g, const DyReader& dy_reader, const XReader& x, const Call& call,
                        const NormSums* sums) {
    using O = Conv2dGradOp;
    const auto& a = call.attrs.as<O>();
    const std::optional<Plan> found = find_plan(g);
    if (!found || hopper_covers(g) || (found->first_layer && (a.data || !std::is_same_v<XReader, Plain<bf16>>)))
        return false;
    const Plan& plan = *found;
    const PackedDy dy(plan, g, dy_reader);
    const auto wgrad = plan.first_layer      ? run_wgrad<kMaxTaps, kFirstLayer, XReader>
                       : plan.taps.count > 1 ? run_wgrad<kMaxTaps, 64, XReader>
                       : g.in_c % 128 == 0   ? run_wgrad<1, 128, XReader>
                                             : run_wgrad<1, 64, XReader>;
    if (a.filters) wgrad(g, plan, dy, x, call.out[O::dw], call.out[O::dbias]);
    if (!a.data) return true;
    const Tensor &w = call.in[O::w], &dx = call.out[O::dx];
    const Geometry of_dx = geometry_of(call.in[O::dy].shape(), dx.shape(), w, a.conv);
    const auto dgrad = g.in_c % 128 == 0 ? run_conv2d<64, 128, true> : run_conv2d<64, 64, true>;
    dgrad(of_dx, plan, g.out_c, dy, w, {.residual = pointer<bf16>(call.in[O::addend])}, pointer<bf16>(dx), {{}, sums});
    return true;
}
template bool conv2d_grad_packed(const Geometry&, const Plain<bf16>&, const Plain<bf16>&, const Call&, const NormSums*);
template bool conv2d_grad_packed(const Geometry&, const NormGradient<bf16>&, const Plain<bf16>&, const Call&,
                                 const NormSums*);
template bool conv2d_grad_packed(const Geometry&, const NormGradient<bf16>&, const Normalised<bf16>&, const Call&,
                                 const NormSums*);

} // namespace rg::RG_GPU
