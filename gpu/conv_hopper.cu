// 3 x 3 convolution with stride 1 and padding 1, and its data gradient, for Hopper GPUs (sm_90a). Covers bf16, 32 or 64
// channels on both sides, and images 8, 16 or 32 pixels wide whose height is a multiple of the tile height. conv.cu and
// conv_groups.cu cover all other cases.
//
// Each SM runs at most one block, which stays until its tiles are done. Blocks take tiles of whole image rows in turn.
// In a block, 128 producer threads load a tile, with one more row above and below, into one of several stages in shared
// memory. They apply batch norm, ReLU or their gradient on load, once per value instead of once for each of 9 taps. Two
// consumer groups of 128 threads multiply the tile with all filters, which stay in shared memory, and store the
// results. The barriers full[stage] and empty[stage] tell consumers that a stage is loaded, and producers that it is
// free again.
//
// An octet is a group of 8 channels. The layouts in shared memory are:
//
//   a stage     [row][octet of channels][pixel, with a zero pixel at either end][8 channels]
//   filters     [column of the filter][row of the filter][octet][result channel][8 channels]
//
// A patch of 8 x 8 pixels is an operand of 64 rows; each of the 9 filter positions only changes its start address. The
// octets of an image row follow the octets of the row above. So the 3 positions of a filter column form a single sum
// over 3 x C values, with C input channels. The data gradient uses the same code, with filters that are rotated by 180
// degrees and whose input and result channels are exchanged.
//
// For statistics, each lane keeps the mean and the squared deviations of its pixels (Welford, 1962), or the two sums
// that batch norm's gradient needs. At the end, a warp merges its lanes, and conv.cuh merges the warps. The order of
// the sums depends only on the number of SMs, so a GPU gives the same bits in every run.
//
// Not yet run on hardware. To be tuned there: the number of stages, the rows of a tile, and the split of registers.
#include "ringgrad/gpu/conv.cuh"
#include "ringgrad/gpu/hopper.cuh"
#include "ringgrad/gpu/lane_sums.cuh"
#include "ringgrad/gpu/octets.cuh"

#include <algorithm>

namespace rg::RG_GPU {

namespace {

constexpr int kGroup = 128, kThreads = 3 * kGroup;
// Registers per thread. At launch, all threads have 168. Producers then get more, to keep a tile's loads in flight.
constexpr int kProducerRegisters = 216, kConsumerRegisters = 144;
static_assert(kProducerRegisters + 2 * kConsumerRegisters == 3 * 168);

// ---- tiles ---------------------------------------------------------------------------------------------------------

constexpr int rows_of_tile(int width) { return width == 16 ? 16 : 8; }

/// A tile of images W pixels wide, with C input channels and N result channels.
template <int C, int N, int W>
struct Tile {
    static constexpr int kOctets = C / 8, kRows = rows_of_tile(W), kPatches = kRows / 8 * (W / 8);
    static constexpr int kStages = C == 32 ? 4 : 3;
    // The octets of a row should begin in different banks. The 4 octets of 32 channels do so with W + 2 pixels each.
    // The 8 octets of 64 channels do so only with an odd number of pixels each.
    static constexpr int kOctetBytes = 16 * (C == 32 ? W + 2 : (W + 2) | 1);
    static constexpr int kRowBytes = kOctets * kOctetBytes, kStageBytes = (kRows + 2) * kRowBytes;
    static constexpr int kFilterBytes = 9 * C * N * 2;
    static constexpr int kSharedBytes = kFilterBytes + kStages * kStageBytes;
};

struct Images {
    int count, height, tiles; // number of images, rows of an image, tiles in all images
};

/// Returns the number of pixels that a partial covers. Each consumer warp stores one partial: two values per channel,
/// computed from the warp's pixels (Epilogue in conv.cuh). Partials are numbered by (block, consumer group, warp).
struct WarpPixels {
    int tiles, blocks, patches; // tiles in all images, blocks of the grid, patches per tile
    __device__ double operator()(int partial) const {
        const int block = partial / 8, group = partial / 4 % 2;
        const int block_patches = (tiles - block + blocks - 1) / blocks * patches;
        return 16.0 * double((block_patches - group + 1) / 2);
    }
};

#ifdef RG_HOPPER

struct Barriers {
    uint64_t *full, *empty, *filters;
};

__device__ __forceinline__ uint4 add_8(uint4 a, uint4 b) {
    float v[8], other[8];
    unpack_8(a, v);
    unpack_8(b, other);
    RG_UNROLL
    for (int i = 0; i < 8; ++i) v[i] += other[i];
    return pack_8(v);
}

// ---- producers -----------------------------------------------------------------------------------------------------

template <class T, int C, int W, class Reader>
__device__ __forceinline__ void produce(const Images& images, const Reader& reader, std::byte* stages,
                                        const Barriers& barriers) {
    constexpr int kCells = (T::kRows + 2) * W * T::kOctets; // a cell has 8 channels of a pixel
    constexpr int kPasses = (kCells + kGroup - 1) / kGroup;
    constexpr int kPassesInFlight = (kPasses <= 10 ? kPasses : kPasses / 2) / OctetReader<Reader>::kLoads;
    const int thread = int(threadIdx.x), octet = thread % T::kOctets;
    const OctetReader<Reader> octet_reader(reader, 8 * octet);
    const auto zero = make_uint4(0, 0, 0, 0);

    // The zero pixels left and right of the image are stored once and never change.
    for (int i = thread; i < T::kStages * (T::kRows + 2) * T::kOctets * 2; i += kGroup)
        store_operand(stages + i / 2 * T::kOctetBytes + i % 2 * (W + 1) * 16, zero);

    const int tiles_of_image = images.height / T::kRows;
    for (int i = 0, tile = int(blockIdx.x); tile < images.tiles; tile += int(gridDim.x), ++i) {
        const int stage = i % T::kStages;
        const int image = tile / tiles_of_image, top = tile % tiles_of_image * T::kRows - 1;
        for (int first = 0; first < kPasses; first += kPassesInFlight) {
            typename OctetReader<Reader>::Loaded loaded[kPassesInFlight] = {};
            const auto row_of = [&](int pass) { return ((first + pass) * kGroup + thread) / (W * T::kOctets); };
            const auto column_of = [&](int pass) { return ((first + pass) * kGroup + thread) / T::kOctets % W; };
            const auto inside = [&](int pass) {
                const int row = row_of(pass);
                return row < T::kRows + 2 && top + row >= 0 && top + row < images.height;
            };
            RG_UNROLL
            for (int pass = 0; pass < kPassesInFlight; ++pass)
                if (inside(pass))
                    loaded[pass] = octet_reader.load(
                        ((size_t(image) * images.height + top + row_of(pass)) * W + column_of(pass)) * C + 8 * octet);
            // Waits until consumers have freed the stage. At the first use of a stage, the wait returns at once.
            if (first == 0) mbarrier_wait(barriers.empty + stage, (i / T::kStages + 1) % 2);
            RG_UNROLL
            for (int pass = 0; pass < kPassesInFlight; ++pass)
                if (row_of(pass) < T::kRows + 2)
                    store_operand(stages + stage * T::kStageBytes + row_of(pass) * T::kRowBytes +
                                      octet * T::kOctetBytes + (column_of(pass) + 1) * 16,
                                  inside(pass) ? octet_reader.transform(loaded[pass]) : zero);
        }
        fence_proxy_async();
        __syncwarp();
        if (thread % 32 == 0) mbarrier_arrive(barriers.full + stage);
    }
}

// ---- consumers -----------------------------------------------------------------------------------------------------

/// Transposes words within each quad of lanes: word j of lane t becomes word t of lane j.
__device__ __forceinline__ void transpose_quads(uint32_t (&words)[4]) {
    RG_UNROLL
    for (int step = 1; step <= 2; step *= 2) {
        const bool upper = int(threadIdx.x) & step;
        RG_UNROLL
        for (int j = 0; j < 4; ++j) {
            if (j & step) continue;
            const uint32_t other = __shfl_xor_sync(kAllLanes, upper ? words[j] : words[j | step], step);
            if (upper)
                words[j] = other;
            else
                words[j | step] = other;
        }
    }
}

/// The work of a consumer thread. If e.partials is not null, each warp stores a partial there. With kTerms, it consists
/// of the sums of `terms`, whose coefficients are in shared memory; otherwise, of means and squared deviations.
template <class T, int N, int W, bool kTerms>
__device__ __forceinline__ void consume(const Images& images, const std::byte* stages, const std::byte* filters,
                                        const Barriers& barriers, const Epilogue<bf16>& e, const NormTerms<bf16>& terms,
                                        bf16* out) {
    const int group = int(threadIdx.x) / kGroup - 1, warp = int(threadIdx.x) % kGroup / 32;
    const int lane = int(threadIdx.x) % 32, pixel = lane / 4, quarter = lane % 4;
    float bias[N / 4]; // bias[c] belongs to channel 8 (c / 2) + 2 quarter + c % 2
    RG_UNROLL
    for (int c = 0; c < N / 4; ++c) bias[c] = e.bias ? e.bias[c / 2 * 8 + 2 * quarter + c % 2] : 0;
    std::conditional_t<kTerms, TermSums<N>, Moments<N>> lane_sums;
    const uint64_t filters_descriptor = descriptor(filters, N * 16, 128);
    mbarrier_wait(barriers.filters, 0);

    const int tiles_of_image = images.height / T::kRows;
    for (int i = 0, tile = int(blockIdx.x); tile < images.tiles; tile += int(gridDim.x), ++i) {
        const int stage = i % T::kStages;
        for (int patch = (group + i * T::kPatches) % 2; patch < T::kPatches; patch += 2) {
            const int down = patch / (W / 8) * 8, right = patch % (W / 8) * 8;
            const auto output_index = [&](int half, int octet) { // index of the first channel that this lane stores
                const int row = tile % tiles_of_image * T::kRows + down + 2 * warp + half;
                return ((size_t(tile / tiles_of_image) * images.height + row) * W + right + pixel) * N + 32 * octet +
                       8 * quarter;
            };
            // A warp computes 2 x 8 pixels of the patch. sum[4 j + 2 i + k] of a lane belongs to the pixel in row i and
            // column `pixel`, and to the channel of bias[2 j + k].
            float sum[N / 2];
            RG_UNROLL
            for (int k = 0; k < N / 2; ++k) sum[k] = bias[k / 4 * 2 + k % 2];

            mbarrier_wait(barriers.full + stage, i / T::kStages % 2);
            const uint64_t patch_descriptor = descriptor(
                stages + stage * T::kStageBytes + down * T::kRowBytes + right * 16, T::kOctetBytes, T::kRowBytes);
            wgmma_fence(sum);
            RG_UNROLL
            for (int s = 0; s < 3; ++s) RG_UNROLL
            for (int octet = 0; octet < 3 * T::kOctets; octet += 2)
                wgmma(sum, patch_descriptor + unsigned(s + octet * T::kOctetBytes / 16),
                      filters_descriptor + unsigned((s * 3 * T::kOctets + octet) * N));
            wgmma_commit();
            uint4 x[2][N / 32] = {}; // values of x for the terms, loaded while the product runs
            if constexpr (kTerms)
                if (e.partials) {
                    RG_UNROLL
                    for (int k = 0; k < N / 16; ++k) x[k % 2][k / 2] = load_16(terms.x + output_index(k % 2, k / 2));
                }
            wgmma_wait(sum);
            __syncwarp();
            if (patch + 2 >= T::kPatches && lane == 0) mbarrier_arrive(barriers.empty + stage);

            RG_UNROLL
            for (int half = 0; half < 2; ++half) {
                float values[N / 4];
                RG_UNROLL
                for (int c = 0; c < N / 4; ++c) values[c] = sum[c / 2 * 4 + 2 * half + c % 2];
                if constexpr (!kTerms)
                    if (e.partials) lane_sums.add(values);
                RG_UNROLL
                for (int octet = 0; octet < N / 32; ++octet) {
                    // This lane has 2 channels of each of 4 octets. After the transpose, it has the 8 channels of one.
                    uint32_t words[4];
                    RG_UNROLL
                    for (int j = 0; j < 4; ++j) {
                        const float low = values[8 * octet + 2 * j], high = values[8 * octet + 2 * j + 1];
                        words[j] = e.relu ? pack_bf16(relu_of(low), relu_of(high)) : pack_bf16(low, high);
                    }
                    transpose_quads(words);
                    auto eight = make_uint4(words[0], words[1], words[2], words[3]);
                    const size_t index = output_index(half, octet);
                    if (e.residual) eight = add_8(eight, load_16(e.residual + index));
                    *reinterpret_cast<uint4*>(out + index) = eight;
                    if constexpr (kTerms)
                        if (e.partials) lane_sums.add(terms, octet, quarter, eight, x[half][octet]);
                }
            }
        }
    }

    if (!e.partials) return;
    lane_sums.merge(4);
    lane_sums.merge(8);
    lane_sums.merge(16);
    if (lane < 4) lane_sums.store(e.partials + size_t((int(blockIdx.x) * 2 + group) * 4 + warp) * 2 * N, quarter);
}

/// The body of the two kernels below, which have two names so that profiles show the direction. The grid has at most as
/// many blocks as run at once. Each block has kSharedBytes of dynamic shared memory.
template <int C, int N, int W, class Reader>
__device__ __forceinline__ void convolve(const Images& images, const Reader& reader, const bf16* __restrict__ packed,
                                         const Epilogue<bf16>& e, bf16* __restrict__ out) {
    using T = Tile<C, N, W>;
    DYNAMIC_SHARED(std::byte, memory); // the filters, then the stages
    SHARED(uint64_t, full, T::kStages);
    SHARED(uint64_t, empty, T::kStages);
    SHARED(uint64_t, filters, 1);
    constexpr bool kTerms = std::is_same_v<Reader, NormGradient<bf16>>; // with another reader, no sums are needed
    SHARED(float, coefficients, kTerms ? 3 * N : 1);
    const NormTerms<bf16> terms{e.terms.x, coefficients, coefficients + N, coefficients + 2 * N, e.terms.relu};
    if constexpr (kTerms)
        if (const int c = int(threadIdx.x); e.partials && c < N)
            coefficients[c] = e.terms.scale[c], coefficients[N + c] = e.terms.shift[c],
            coefficients[2 * N + c] = e.terms.mean[c];
    const Barriers barriers{full, empty, filters};
    constexpr int kConsumers = T::kPatches > 1 ? 2 : 1; // consumer groups per tile; they take its patches in turn
    if (threadIdx.x == 0) {
        for (int i = 0; i < T::kStages; ++i) {
            mbarrier_init(full + i, kGroup / 32);
            mbarrier_init(empty + i, kConsumers * (kGroup / 32));
        }
        mbarrier_init(filters, 1);
        fence_proxy_async();
        mbarrier_arrive_expect(filters, T::kFilterBytes);
        bulk_copy(memory, packed, T::kFilterBytes, filters);
    }
    __syncthreads();
    if (threadIdx.x < kGroup) {
        increase_registers<kProducerRegisters>();
        produce<T, C, W>(images, reader, memory + T::kFilterBytes, barriers);
    } else {
        decrease_registers<kConsumerRegisters>();
        consume<T, N, W, kTerms>(images, memory + T::kFilterBytes, memory, barriers, e, terms, out);
    }
}

#else

/// Replaces convolve() on GPUs without the instructions of Hopper, where the host does not launch the kernels.
template <int C, int N, int W, class... Arguments>
__device__ void convolve(const Arguments&...) {
    __trap();
}

#endif // RG_HOPPER

template <int C, int N, int W, class Reader>
__global__ void __launch_bounds__(kThreads, 1)
    conv2d_forward_hopper_kernel(Images images, Reader reader, const bf16* __restrict__ packed, Epilogue<bf16> e,
                                 bf16* __restrict__ out) {
    convolve<C, N, W>(images, reader, packed, e, out);
}

template <int C, int N, int W, class Reader>
__global__ void __launch_bounds__(kThreads, 1)
    conv2d_dgrad_hopper_kernel(Images images, Reader reader, const bf16* __restrict__ packed, Epilogue<bf16> e,
                               bf16* __restrict__ out) {
    convolve<C, N, W>(images, reader, packed, e, out);
}

/// Packs filters to packed [s][r][in_c / 8][out_c][8 of in_c]. In the forward pass, w is [out_c][r][s][in_c]. In the
/// data gradient, w is [in_c][r][s][out_c], and the filters are also rotated by 180 degrees.
__global__ void conv2d_pack_filters_hopper_kernel(Geometry g, bool gradient, const bf16* w, bf16* packed) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= 9 * g.in_c * g.out_c) return;
    const int out = i / 8 % g.out_c, in = i / 8 / g.out_c % (g.in_c / 8) * 8 + i % 8;
    const int s = i / (3 * g.in_c * g.out_c), r = i / (g.in_c * g.out_c) % 3;
    const int tap = gradient ? 8 - (3 * r + s) : 3 * r + s;
    packed[i] = gradient ? w[(size_t(in) * 9 + tap) * g.out_c + out] : w[(size_t(out) * 9 + tap) * g.in_c + in];
}

template <int C, int N, int W, class Reader>
void run_conv2d(const Geometry& g, bool gradient, const Reader& reader, const bf16* w, Epilogue<bf16> e, bf16* out,
                const ChannelReductions& reductions) {
    using T = Tile<C, N, W>;
    const Images images{g.images, g.in_h, g.images * (g.in_h / T::kRows)};
    const int blocks = std::min(images.tiles, gpu_traits().sm_count), count = blocks * 8;
    const Scratch<bf16> packed(9 * C * N);
    const Scratch<float> partials(reductions ? size_t(count) * 2 * N : 0);
    if (reductions) e.partials = partials;
    if (reductions.sums) e.terms = reductions.sums->terms<bf16>();
    RG_LAUNCH(conv2d_pack_filters_hopper_kernel, blocks_for(9 * C * N, 256), 256, 0, stream(), g, gradient, w, packed);
    // Reader Plain is used in both directions, each other reader in one.
    constexpr bool kOnlyForward = std::is_same_v<Reader, Normalised<bf16>>;
    constexpr bool kOnlyDgrad = std::is_same_v<Reader, NormGradient<bf16>>;
    if constexpr (!kOnlyDgrad)
        if (!gradient)
            RG_LAUNCH((conv2d_forward_hopper_kernel<C, N, W, Reader>), unsigned(blocks), kThreads, T::kSharedBytes,
                      stream(), images, reader, packed, e, out);
    if constexpr (!kOnlyForward)
        if (gradient)
            RG_LAUNCH((conv2d_dgrad_hopper_kernel<C, N, W, Reader>), unsigned(blocks), kThreads, T::kSharedBytes,
                      stream(), images, reader, packed, e, out);
    reductions.finish(partials, unsigned(count), WarpPixels{images.tiles, blocks, T::kPatches}, g);
}

template <int I>
using Constant = std::integral_constant<int, I>;

} // namespace

template <class Reader>
bool convolve_on_hopper(const Geometry& g, bool gradient, const Reader& reader, const bf16* w, Epilogue<bf16> e,
                        bf16* out, const ChannelReductions& reductions) {
    const auto covered = [](int channels) { return channels == 32 || channels == 64; };
    if (!gpu_traits().hopper_kernels || g.images == 0 || g.r != 3 || g.s != 3 || g.stride != Axes(1) ||
        g.pad != Axes(1) || g.dilation != Axes(1) || !covered(g.in_c) || !covered(g.out_c) ||
        (g.in_w != 8 && g.in_w != 16 && g.in_w != 32) || g.in_h % rows_of_tile(g.in_w) != 0)
        return false;
    const auto with_channels = [](int channels, auto f) { channels == 32 ? f(Constant<32>{}) : f(Constant<64>{}); };
    const auto with_width = [&](auto f) {
        if (g.in_w == 8) f(Constant<8>{});
        if (g.in_w == 16) f(Constant<16>{});
        if (g.in_w == 32) f(Constant<32>{});
    };
    with_channels(g.in_c, [&](auto c) {
        with_channels(g.out_c, [&](auto n) {
            with_width([&](auto width) {
                run_conv2d<decltype(c)::value, decltype(n)::value, decltype(width)::value>(g, gradient, reader, w, e,
                                                                                           out, reductions);
            });
        });
    });
    return true;
}
template bool convolve_on_hopper(const Geometry&, bool, const Plain<bf16>&, const bf16*, Epilogue<bf16>, bf16*,
                                 const ChannelReductions&);
template bool convolve_on_hopper(const Geometry&, bool, const Normalised<bf16>&, const bf16*, Epilogue<bf16>, bf16*,
                                 const ChannelReductions&);
template bool convolve_on_hopper(const Geometry&, bool, const NormGradient<bf16>&, const bf16*, Epilogue<bf16>, bf16*,
                                 const ChannelReductions&);

} // namespace rg::RG_GPU
