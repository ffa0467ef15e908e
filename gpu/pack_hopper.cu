// Plans how images are packed (packed_images.cuh), and packs images and filters.
#include "gpu/packed_images.cuh"

#include "gpu/octets.cuh"

#include <algorithm>

namespace rg::RG_GPU {

namespace {

/// The taps of one axis, for images with `full` and results with `small` pixels along it.
struct AxisTaps {
    int phase[kMaxTaps], offset[kMaxTaps], low = 0, high = 0; // low, high: the offsets and 0 are in [low, high]
    int length;                                               // number of cells along the axis, zeros included
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

/// Packs images h x w with `channels` channels. Bit i of `phases` is set if phase i is needed. A block packs kOctets
/// octets of 256 cells; the grid has blocks of cells x groups of kOctets octets x phases.
template <int kOctets, class Reader>
__global__ void __launch_bounds__(256) conv2d_pack_hopper_kernel(CellLayout cells, unsigned phases, int h, int w,
                                                                 int channels, Reader reader, bf16* packed) {
    constexpr int kStep = 256 / kOctets, kBatch = 4;
    const int phase = int(blockIdx.z);
    if (!(phases >> phase & 1)) return;
    const int octet = int(blockIdx.y) * kOctets + int(threadIdx.x) % kOctets;
    const int channel = min(8 * octet, channels - 8); // beyond x, loads its last octet
    const OctetReader<Reader> octet_reader(reader, channel);
    uint4* const to = reinterpret_cast<uint4*>(packed) + (size_t(phase) * (gridDim.y * kOctets) + octet) * cells.count;
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
            const CellPlace p(cells, max(cell, 0));
            const int row = p.row * row_step + first_row, column = p.column * column_step + first_column;
            inside[j] = cell >= 0 && p.image < cells.images && row < h && column < w && 8 * octet < channels;
            // Elsewhere, loads the first pixel, since the compiler would wait for a load in a branch.
            const size_t pixel = inside[j] ? (size_t(p.image) * h + row) * w + column : 0;
            loaded[j] = octet_reader.load(pixel * channels + channel);
        }
        RG_UNROLL
        for (int j = 0; j < kBatch; ++j)
            if (const int cell = begin + i + j * kStep; cell < cells.count)
                to[cell] = select(inside[j], octet_reader.transform(loaded[j]), 0);
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
    conv2d_pack_first_hopper_kernel(CellLayout cells, unsigned phases, FirstLayer layer, uint4* packed) {
    constexpr int kOctets = kSmallCell / 8;
    const int phase = int(blockIdx.z), octet = int(threadIdx.x) % kOctets;
    if (!(phases >> phase & 1)) return;
    for (int i = int(threadIdx.x) / kOctets; i < 256; i += 256 / kOctets) {
        const int cell = int(blockIdx.x) * 256 + i;
        if (cell >= cells.count) continue;
        const CellPlace p(cells, max(cell - cells.margin, 0));
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

/// Computes the result of pack_filters(), which has `count` octets.
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
            v[j] = result < values ? load(w + (size_t(channel + j) * taps + tap) * values + result) : 0;
        else
            v[j] = channel + j < values ? load(w + (size_t(result) * taps + tap) * values + channel + j) : 0;
    packed[i] = pack_8(v);
}

} // namespace

std::optional<PackedPlan> packed_plan_of(const ConvGeometry& g) {
    const bool first_layer = cell_channels(g.from_c) == 0;
    const AxisTaps rows(g.r, g.stride.h, g.pad.h, g.dilation.h, g.from_h, g.to_h);
    const AxisTaps columns = first_layer ? AxisTaps(1, 1, 0, 1, g.to_w, g.to_w)
                                         : AxisTaps(g.s, g.stride.w, g.pad.w, g.dilation.w, g.from_w, g.to_w);
    // With more than 4 cells per pixel, the zeros would cost more than these kernels gain.
    const double pixels =
        std::max(double(g.pixels()), double(g.images) * g.from_h * g.from_w / g.stride.h / g.stride.w);
    const double all_cells = double(g.images) * rows.length * columns.length;
    if (g.pixels() == 0 || all_cells > 4 * pixels || all_cells > 1 << 28) return {};

    const int filter_columns = first_layer ? 1 : g.s, stride_w = first_layer ? 1 : g.stride.w;
    PackedTaps taps;
    taps.phases = g.stride.h * stride_w;
    int used_phases = 0;
    for (int phase = 0; phase < taps.phases; ++phase) {
        for (int r = 0; r < g.r; ++r)
            for (int s = 0; s < filter_columns; ++s) {
                if (rows.phase[r] * stride_w + columns.phase[s] != phase) continue;
                taps.place[taps.count] = r * filter_columns + s;
                taps.offset[taps.count] = rows.offset[r] * columns.length + columns.offset[s];
                taps.min_offset = std::min(taps.min_offset, taps.offset[taps.count]);
                taps.max_offset = std::max(taps.max_offset, taps.offset[taps.count]);
                ++taps.count;
            }
        taps.begin[phase + 1] = taps.count;
        used_phases += !taps.empty(phase);
    }
    // In each kernel, at least one stage must fit into shared memory.
    const int halo = taps.max_offset - taps.min_offset;
    if (halo > kSharedBytes / 128 || kSlotsBytes + 128 * (256 + halo) > kSharedBytes ||
        8192 + used_phases * 128 * (kSmallTile + halo) > kSharedBytes)
        return {};
    const int margin = std::max(-taps.min_offset, taps.max_offset);
    const int count = (int(all_cells) + kCellStep - 1) / kCellStep * kCellStep + 2 * margin;
    const CellLayout cells{
        Divisor(rows.length * columns.length), Divisor(columns.length), g.images, margin, count, g.stride.h, stride_w};
    const int channels = first_layer ? kSmallCell : cell_channels(g.from_c);
    const int values = g.filter_values() / taps.count;
    return PackedPlan{taps, cells, first_layer, channels, values, g.from_h, g.from_w, g.to_h, g.to_w};
}

template <class Reader>
DeviceScratch<bf16> pack_x(const PackedPlan& plan, const ConvGeometry& g, const Reader& reader) {
    const PackedTaps& taps = plan.taps;
    DeviceScratch<bf16> packed(size_t(taps.phases) * size_t(plan.channels) * size_t(plan.cells.count));
    unsigned phases = 0;
    for (int i = 0; i < taps.phases; ++i) phases |= unsigned(!taps.empty(i)) << i;
    const unsigned cells = blocks_for(plan.cells.count, 256), z = unsigned(taps.phases);
    if constexpr (std::is_same_v<Reader, Plain<bf16>>)
        if (plan.first_layer) {
            const int row = g.from_w * g.from_c, step = g.stride.w * g.from_c, pad = g.pad.w * g.from_c;
            const FirstLayer layer{reader.x, g.from_h, row, plan.values, step, pad};
            RG_LAUNCH(conv2d_pack_first_hopper_kernel, dim3(cells, 1, z), 256, 0, stream(), plan.cells, phases, layer,
                      reinterpret_cast<uint4*>(packed.data()));
            return packed;
        }
    const auto pack = [&]<int kOctets>(Constant<kOctets>) {
        RG_LAUNCH((conv2d_pack_hopper_kernel<kOctets, Reader>), dim3(cells, unsigned(plan.channels / 8 / kOctets), z),
                  256, 0, stream(), plan.cells, phases, g.from_h, g.from_w, g.from_c, reader, packed);
    };
    plan.channels == kSmallCell ? pack(Constant<kSmallCell / 8>{}) : pack(Constant<8>{});
    return packed;
}
template DeviceScratch<bf16> pack_x(const PackedPlan&, const ConvGeometry&, const Plain<bf16>&);
template DeviceScratch<bf16> pack_x(const PackedPlan&, const ConvGeometry&, const NormReader<bf16>&);

template <class Reader>
DeviceScratch<bf16> pack_dy(const PackedPlan& plan, const ConvGeometry& g, const Reader& reader) {
    DeviceScratch<bf16> packed(size_t(g.to_c) * size_t(plan.cells.count));
    RG_LAUNCH((conv2d_pack_hopper_kernel<8, Reader>), dim3(blocks_for(plan.cells.count, 256), unsigned(g.to_c / 64)),
              256, 0, stream(), plan.cells, 1u, g.to_h, g.to_w, g.to_c, reader, packed);
    return packed;
}
template DeviceScratch<bf16> pack_dy(const PackedPlan&, const ConvGeometry&, const Plain<bf16>&);
template DeviceScratch<bf16> pack_dy(const PackedPlan&, const ConvGeometry&, const NormGradReader<bf16>&);

template <bool kDgrad>
DeviceScratch<bf16> pack_filters(const PackedPlan& plan, int c, int n, int channels, int results,
                                 const GivenFilters& w) {
    DeviceScratch<bf16> packed(size_t(plan.taps.count) * size_t(channels) * size_t(results));
    const int count = plan.taps.count * channels / 8 * results;
    const auto pack = [&](auto* given) {
        RG_LAUNCH((conv2d_pack_filters_hopper_kernel<kDgrad, std::decay_t<decltype(*given)>>), blocks_for(count, 256),
                  256, 0, stream(), count, n, plan.taps.count, channels / c, c, plan.values, given,
                  reinterpret_cast<uint4*>(packed.data()));
    };
    w.visit(pack);
    return packed;
}
template DeviceScratch<bf16> pack_filters<false>(const PackedPlan&, int, int, int, int, const GivenFilters&);
template DeviceScratch<bf16> pack_filters<true>(const PackedPlan&, int, int, int, int, const GivenFilters&);

} // namespace rg::RG_GPU
