// 3 x 3 convolution with stride 1 and padding 1, and its data gradient, for Hopper GPUs (sm_90a). Covers bf16, and
// images 8, 16 or 32 pixels wide whose height is a multiple of 8, or for width 16 of 16. Input and result each have 32
// or 64 channels. For images 8 pixels wide, either or both may also have 128, but not together with 32.
// conv_packed_hopper.cu, conv.cu, conv_groups.cu and linear.cu cover the other cases.
//
// Each SM runs at most one block at a time, which stays until its tiles are done. Blocks take tiles of whole image rows
// in turn. In a block, 128 producer threads load a tile, with one more row above and below, into one of several stages
// in shared memory. They apply batch norm, ReLU or their gradient on load, once per loaded value instead of once for
// each of the 9 filter positions. The loads of the next tile are in flight while producers wait for a stage. Two
// consumer groups of 128 threads multiply the tile with all filters and store the results. At the start, they load the
// filters, which stay in shared memory. 128 result channels are two chunks of 64: half of the blocks compute one chunk
// of all tiles, half the other. The barriers full[stage] and empty[stage] tell consumers that a stage is loaded, and
// producers that it is free again.
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
// that batch norm's gradient needs. At the end, a warp merges its lanes, the block merges its warps, and the block that
// ends last merges all blocks. For given shapes, the order of the sums depends only on the number of SMs, so a GPU
// gives the same bits in every run.
#include "gpu/conv.cuh"
#include "gpu/conv_choice.cuh"
#include "gpu/divisor.cuh"
#include "gpu/hopper.cuh"
#include "gpu/lane_sums.cuh"
#include "gpu/octets.cuh"

#include <algorithm>

namespace rg::RG_GPU {

namespace {

constexpr int kGroup = 128, kThreads = 3 * kGroup;
// Registers per thread. Producers get more than at the launch, to keep a tile's loads in flight.
constexpr int kProducerRegisters = 216, kConsumerRegisters = 144;
static_assert(kProducerRegisters + 2 * kConsumerRegisters == 3 * kRegisters);

// ---- tiles ---------------------------------------------------------------------------------------------------------

/// A tile of images W pixels wide, with C input channels, and the filters of N result channels.
template <int C, int N, int W>
struct HopperTile {
    static constexpr int kOctets = C / 8, kRows = rows_of_tile(W), kPatches = kRows / 8 * (W / 8);
    static constexpr int kStages = C == 32 ? 4 : C == 64 ? 3 : 2;
    // 8 neighbouring octets of a row (of 32 channels, all 4) should begin in different banks. The 4 octets of 32
    // channels do so with W + 2 pixels each. More octets do so only with an odd number of pixels each.
    static constexpr int kOctetBytes = 16 * (C == 32 ? W + 2 : (W + 2) | 1);
    static constexpr int kRowBytes = kOctets * kOctetBytes, kStageBytes = (kRows + 2) * kRowBytes;
    static constexpr int kFilterBytes = 9 * C * N * 2;
    static constexpr int kSharedBytes = kFilterBytes + kStages * kStageBytes;
};

/// The tiles of all images. Tile i begins at row i * (rows of a tile), counted through all images.
struct Tiles {
    int count;
    Divisor per_image;
    /// Returns the number of tiles that block number `block` of `blocks` blocks computes.
    __device__ int of_block(int block, int blocks) const { return (count - block + blocks - 1) / blocks; }
};

/// Returns the number of pixels that a partial covers. Each block stores one partial: two values per channel, computed
/// from the block's pixels (ConvEpilogue in conv_results.cuh).
struct BlockPixels {
    Tiles tiles;
    int pixels; // pixels per tile
    __device__ double operator()(int block) const { return double(tiles.of_block(block, int(gridDim.x))) * pixels; }
};

#ifdef RG_HOPPER

struct Barriers : StageBarriers {
    uint64_t* consumers; // a barrier of all consumer threads
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
__device__ __forceinline__ void produce(const Tiles& tiles, const Reader& reader, std::byte* stages,
                                        const Barriers& barriers) {
    // A thread always loads the same octet. With each pass, it moves on by kStep pixels of the tile.
    constexpr int kStep = kGroup / T::kOctets, kPasses = ((T::kRows + 2) * W + kStep - 1) / kStep;
    // The loads of so many passes are in flight together; more would need too many registers.
    constexpr int kPassesInFlight =
        kPasses * OctetReader<Reader>::kLoads <= 20 ? kPasses : kPasses / (kPasses % 4 == 0 ? 4 : 2);
    static_assert(kPasses % kPassesInFlight == 0);
    const int thread = int(threadIdx.x), octet = thread % T::kOctets, pixel = thread / T::kOctets;
    const OctetReader<Reader> octet_reader(reader, 8 * octet);

    // The zero pixels left and right of the image are stored once and never change.
    for (int i = thread; i < T::kStages * (T::kRows + 2) * T::kOctets * 2; i += kGroup)
        store_operand(stages + i / 2 * T::kOctetBytes + i % 2 * (W + 1) * 16, make_uint4(0, 0, 0, 0));

    const int first_row = kStep > W ? pixel / W : 0;
    const auto row_of = [&](int pass) { return first_row + pass * kStep / W; };
    struct HaloRows { // true if the image has a row above the tile, or below it
        bool above, below;
        __device__ bool contain(int row) const {
            return (row > 0 || above) && (row <= T::kRows || below) && row < T::kRows + 2;
        }
    };
    const auto halo_of = [&](int tile) {
        const int number = tile % tiles.per_image;
        return HaloRows{number > 0, number + 1 < tiles.per_image};
    };
    typename OctetReader<Reader>::Loaded loaded[kPassesInFlight] = {};
    const auto load = [&](int tile, const HaloRows& halo, int first) {
        const size_t index = (size_t(tile) * T::kRows * W + pixel - W) * C + 8 * octet; // in pass 0
        RG_UNROLL
        for (int i = 0; i < kPassesInFlight; ++i)
            if (halo.contain(row_of(first + i))) loaded[i] = octet_reader.load(index + (first + i) * (kStep * C));
    };
    std::byte* const first_cell = stages + first_row * T::kRowBytes + octet * T::kOctetBytes + (pixel % W + 1) * 16;

    int tile = int(blockIdx.x);
    HaloRows halo = halo_of(tile);
    load(tile, halo, 0);
    for (int i = 0; tile < tiles.count; ++i) {
        const int stage = i % T::kStages;
        // Waits until consumers have freed the stage. At the first use of a stage, the wait returns at once.
        mbarrier_wait(barriers.empty + stage, (i / T::kStages + 1) % 2);
        RG_UNROLL
        for (int first = 0; first < kPasses; first += kPassesInFlight) {
            RG_UNROLL
            for (int j = 0; j < kPassesInFlight; ++j) {
                const int pass = first + j;
                const uint4 values = octet_reader.transform(loaded[j]);
                if (row_of(pass) < T::kRows + 2)
                    store_operand(first_cell + stage * T::kStageBytes + pass * kStep / W * T::kRowBytes +
                                      pass * kStep % W * 16,
                                  select(halo.contain(row_of(pass)), values, 0));
            }
            if (first + kPassesInFlight < kPasses) load(tile, halo, first + kPassesInFlight);
        }
        fence_proxy_async();
        mbarrier_arrive_warp(barriers.full + stage);
        tile += int(gridDim.x);
        halo = halo_of(tile);
        if (tile < tiles.count) load(tile, halo, 0);
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

/// Loads the filters of N result channels, beginning with channel `first`, and stores them to shared memory in bf16. In
/// the forward pass, w is [to_c][r][s][from_c]. In the data gradient, w is [from_c][r][s][to_c], and the function also
/// rotates the filters by 180 degrees.
template <class T, int N, bool kDgrad, class Weight>
__device__ __forceinline__ void load_filters(const Weight* __restrict__ w, int first, int out_c, std::byte* filters) {
    constexpr int kPlaces = 9 * T::kOctets, kLoaders = kThreads - kGroup, kInFlight = 6;
    // Octets are numbered such that neighbouring threads load from few memory lines, and store to different banks.
    const auto channel_of = [](int i) { return kDgrad ? i % N : i / (8 * kPlaces) * 8 + i % 8; };
    const auto place_of = [](int i) { return kDgrad ? i / N : i / 8 % kPlaces; };
    // Each block begins with other octets, so that not all of them wait for the same part of the L2 cache.
    const int offset = int(blockIdx.x * unsigned(kPlaces * N) / gridDim.x) / 64 * 64;
    const auto octet_of = [&](int i) {
        i += offset;
        return i < kPlaces * N ? i : i - kPlaces * N;
    };
    for (int begin = int(threadIdx.x) - kGroup; begin < kPlaces * N; begin += kInFlight * kLoaders) {
        float v[kInFlight][8];
        RG_UNROLL
        for (int k = 0; k < kInFlight; ++k) {
            // Instead of octets beyond the last, loads the last, since the compiler would wait for loads in a branch.
            const int i = octet_of(min(begin + k * kLoaders, kPlaces * N - 1));
            const int channel = first + channel_of(i), place = place_of(i);
            if constexpr (kDgrad) {
                RG_UNROLL
                for (int j = 0; j < 8; ++j)
                    v[k][j] = load(w + ((place % T::kOctets * 8 + j) * 9 + place / T::kOctets) * out_c + channel);
            } else {
                load_8(w + (channel * kPlaces + place) * 8, v[k]);
            }
        }
        RG_UNROLL
        for (int k = 0; k < kInFlight; ++k) {
            const int i = octet_of(begin + k * kLoaders), place = place_of(i);
            const int tap = kDgrad ? 8 - place / T::kOctets : place / T::kOctets;
            if (begin + k * kLoaders < kPlaces * N)
                store_operand(
                    filters + (((tap % 3 * 3 + tap / 3) * T::kOctets + place % T::kOctets) * N + channel_of(i)) * 16,
                    pack_8(v[k]));
        }
    }
}

/// Merges the values of a channel of all consumer warps. `stored` holds [8 warps][2][N] as lane_sums.cuh stores them.
/// pixels(group) returns the number of pixels of each warp of a group.
template <int N, bool kTerms, class Pixels>
__device__ __forceinline__ float2 merge_warps(const float* stored, int channel, const Pixels& pixels) {
    float first = 0, second = 0, count = 0;
    for (int warp = 0; warp < 8; ++warp) {
        const float weight = kTerms ? 1 : pixels(warp / 4);
        first += weight * stored[warp * 2 * N + channel];
        second += stored[(warp * 2 + 1) * N + channel];
        count += weight;
    }
    if constexpr (!kTerms) { // the values are means, and sums of squared deviations
        first /= count;
        for (int warp = 0; warp < 8; ++warp) {
            const float d = stored[warp * 2 * N + channel] - first;
            second += pixels(warp / 4) * d * d;
        }
    }
    return make_float2(first, second);
}

/// The work of a consumer thread. If e.partials is not null, the block stores a partial there. In the data gradient,
/// the partial consists of the sums of `terms`, whose coefficients are in shared memory; otherwise, of means and
/// squared deviations. `warp_sums` has space for [8 warps][2][N] values. The block computes N result channels,
/// beginning with channel blockIdx.y * N.
template <class T, int N, int W, bool kDgrad>
__device__ __forceinline__ void consume(const Tiles& tiles, const std::byte* stages, std::byte* filters,
                                        float* warp_sums, const Barriers& barriers, const GivenFilters& w,
                                        const ConvEpilogue<bf16>& e, const NormTerms<bf16>& terms, bf16* out) {
    const int out_c = int(gridDim.y) * N, first_channel = int(blockIdx.y) * N;
    // The shuffles show the compiler that all lanes have the same value.
    const int group = __shfl_sync(kAllLanes, int(threadIdx.x) / kGroup - 1, 0);
    const int warp = __shfl_sync(kAllLanes, int(threadIdx.x) % kGroup / 32, 0);
    const int lane = int(threadIdx.x) % 32, pixel = lane / 4, quarter = lane % 4;
    w.visit([&](auto* given) { load_filters<T, N, kDgrad>(given, first_channel, out_c, filters); });
    fence_proxy_async();
    mbarrier_arrive(barriers.consumers);

    float bias[N / 4] = {}; // bias[c] belongs to channel 8 (c / 2) + 2 quarter + c % 2; 0 in the data gradient
    if (!kDgrad && e.bias) {
        RG_UNROLL
        for (int c = 0; c < N / 4; ++c) bias[c] = e.bias[first_channel + c / 2 * 8 + 2 * quarter + c % 2];
    }
    std::conditional_t<kDgrad, TermSums<N>, Moments<N>> lane_sums;
    const uint64_t filters_descriptor = descriptor(filters, N * 16, 128);
    mbarrier_wait(barriers.consumers, 0);

    for (int i = 0, tile = int(blockIdx.x); tile < tiles.count; tile += int(gridDim.x), ++i) {
        const int stage = i % T::kStages;
        for (int patch = (group + i * T::kPatches) % 2; patch < T::kPatches; patch += 2) {
            const int down = patch / (W / 8) * 8, right = patch % (W / 8) * 8;
            // A warp computes 2 x 8 pixels of the patch. sum[4 j + 2 i + k] of a lane belongs to the pixel in row i and
            // column `pixel`, and to the channel of bias[2 j + k].
            float sum[N / 2];
            RG_UNROLL
            for (int k = 0; k < N / 2; ++k) sum[k] = bias[k / 4 * 2 + k % 2];

            // Prepares the stores of the results. In the data gradient, starts to load x here, so that the values have
            // arrived when the product is done. A lane stores octets of its pixels in both rows. The first of them goes
            // to index first_output of `out`.
            const size_t row = size_t(tile) * T::kRows + down + 2 * warp;
            const size_t first_output = (row * W + right + pixel) * out_c + first_channel + 8 * quarter;
            const auto output_index = [&](int half, int octet) { return first_output + half * W * out_c + 32 * octet; };
            uint4 x[2][N / 32] = {}; // data gradient: x at the lane's results, for NormTerms
            float weights[2] = {};   // weights of the lane's two pixels in the means
            if constexpr (!kDgrad) {
                weights[0] = lane_sums.next_weight(), weights[1] = lane_sums.next_weight();
            } else if (e.partials) {
                RG_UNROLL
                for (int k = 0; k < N / 16; ++k) x[k % 2][k / 2] = load_16(terms.x + output_index(k % 2, k / 2));
            }

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
            wgmma_wait(sum);
            if (patch + 2 >= T::kPatches) mbarrier_arrive_warp(barriers.empty + stage);

            float values[2][N / 4]; // results of the lane's pixels in both rows, with channels in the order of bias
            RG_UNROLL
            for (int k = 0; k < N / 2; ++k) values[k / 2 % 2][k / 4 * 2 + k % 2] = sum[k];
            if constexpr (!kDgrad) {
                if (e.partials) lane_sums.add(values[0], weights[0]), lane_sums.add(values[1], weights[1]);
                if (e.relu) {
                    RG_UNROLL
                    for (int k = 0; k < N / 2; ++k) values[k % 2][k / 2] = relu_of(values[k % 2][k / 2]);
                }
            }
            uint4 octets[2][N / 32];
            RG_UNROLL
            for (int half = 0; half < 2; ++half) RG_UNROLL
            for (int octet = 0; octet < N / 32; ++octet) {
                // This lane has 2 channels of each of 4 octets. After the transpose, it has the 8 channels of one.
                uint32_t words[4];
                RG_UNROLL
                for (int j = 0; j < 4; ++j)
                    words[j] = pack_bf16(values[half][8 * octet + 2 * j], values[half][8 * octet + 2 * j + 1]);
                transpose_quads(words);
                octets[half][octet] = make_uint4(words[0], words[1], words[2], words[3]);
            }
            if constexpr (kDgrad)
                if (e.addend) {
                    RG_UNROLL
                    for (int k = 0; k < N / 16; ++k)
                        octets[k % 2][k / 2] =
                            add_8(octets[k % 2][k / 2], load_16(e.addend + output_index(k % 2, k / 2)));
                }
            RG_UNROLL
            for (int k = 0; k < N / 16; ++k) store_octet(out + output_index(k % 2, k / 2), octets[k % 2][k / 2]);
            if constexpr (kDgrad)
                if (e.partials) {
                    RG_UNROLL
                    for (int k = 0; k < N / 16; ++k)
                        lane_sums.add(terms, k / 2, quarter, octets[k % 2][k / 2], x[k % 2][k / 2]);
                }
        }
    }

    if (!e.partials) return;
    lane_sums.merge(4);
    lane_sums.merge(8);
    lane_sums.merge(16);
    if (lane < 4) lane_sums.store(warp_sums + (group * 4 + warp) * 2 * N, quarter);
    mbarrier_arrive(barriers.consumers);
    mbarrier_wait(barriers.consumers, 1);
    const int channel = int(threadIdx.x) - kGroup;
    if (channel >= N) return;
    const int patches = tiles.of_block(int(blockIdx.x), int(gridDim.x)) * T::kPatches;
    const float2 merged = merge_warps<N, kDgrad>(
        warp_sums, channel, [&](int of_group) { return float(16 * ((patches - of_group + 1) / 2)); });
    float* const partial = e.partials + size_t(blockIdx.x) * 2 * out_c + first_channel + channel;
    partial[0] = merged.x, partial[out_c] = merged.y;
}

/// Adds the partials of all blocks for the N channels of this chunk, in a fixed order, and calls finish(channel, first,
/// second) with the totals. term(block, channel, first, second) adds a block's values. `sums` has space for 2 kThreads
/// values in shared memory.
template <int N, class Term, class Finish>
__device__ __forceinline__ void merge_blocks(const Term& term, const Finish& finish, double* sums) {
    constexpr int kSlices = kThreads / N; // threads per channel, which take the blocks in turn
    const int in_chunk = int(threadIdx.x) % N, slice = int(threadIdx.x) / N, channel = int(blockIdx.y) * N + in_chunk;
    double first = 0, second = 0;
    RG_UNROLL_4
    for (int block = slice; block < int(gridDim.x); block += kSlices) term(block, channel, first, second);
    sums[threadIdx.x] = first, sums[kThreads + threadIdx.x] = second;
    __syncthreads();
    if (slice > 0) return;
    for (int i = 1; i < kSlices; ++i) first += sums[i * N + in_chunk], second += sums[kThreads + i * N + in_chunk];
    finish(channel, first, second);
}

/// The body of the two kernels below. They have two names so that profiles tell the forward pass from the data
/// gradient. In the grid, x numbers the blocks that share the tiles, and y the chunks of N result channels. Each block
/// has kSharedBytes of dynamic shared memory. If e.partials is not null, the block of each chunk that ends last reduces
/// the chunk's partials and hands the totals to `finish`. `arrivals` has a counter per chunk (reduce.cuh).
template <int C, int N, int W, bool kDgrad, class Reader, class Finish>
__device__ __forceinline__ void convolve(const Tiles& tiles, const Reader& reader, const GivenFilters& w,
                                         const ConvEpilogue<bf16>& e, const Finish& finish, unsigned* arrivals,
                                         bf16* __restrict__ out) {
    using T = HopperTile<C, N, W>;
    DYNAMIC_SHARED(std::byte, memory); // the filters, then the stages
    SHARED(uint64_t, full, T::kStages);
    SHARED(uint64_t, empty, T::kStages);
    SHARED(uint64_t, consumers, 1);
    SHARED(float, warp_sums, 8 * 2 * N);
    SHARED(float, coefficients, kDgrad ? 3 * N : 1);
    const NormTerms<bf16> terms{e.terms.x, coefficients, coefficients + N, coefficients + 2 * N, e.terms.relu};
    if constexpr (kDgrad)
        if (const int c = int(threadIdx.x), channel = int(blockIdx.y) * N + c; e.partials && c < N)
            coefficients[c] = e.terms.scale[channel], coefficients[N + c] = e.terms.shift[channel],
            coefficients[2 * N + c] = e.terms.mean[channel];
    const Barriers barriers{{full, empty}, consumers};
    constexpr int kConsumers = T::kPatches > 1 ? 2 : 1; // groups that take the patches of a tile in turn
    if (threadIdx.x == 0) {
        barriers.init(T::kStages, kGroup / 32, kConsumers * (kGroup / 32));
        mbarrier_init(consumers, 2 * kGroup);
        fence_proxy_async();
    }
    __syncthreads();
    if (threadIdx.x < kGroup) {
        set_registers<kProducerRegisters>();
        produce<T, C, W>(tiles, reader, memory + T::kFilterBytes, barriers);
    } else {
        set_registers<kConsumerRegisters>();
        consume<T, N, W, kDgrad>(tiles, memory + T::kFilterBytes, memory, warp_sums, barriers, w, e, terms, out);
    }
    if (!e.partials || !is_last_block(arrivals + blockIdx.y, gridDim.x)) return;
    double* const sums = reinterpret_cast<double*>(memory); // nobody uses the filters any more
    const int out_c = int(gridDim.y) * N;
    if constexpr (kDgrad)
        merge_blocks<N>(SlabSums<float>{e.partials, out_c}, finish, sums);
    else
        merge_blocks<N>(AddPartialMoments<BlockPixels>{e.partials, {tiles, T::kRows * W}, out_c}, finish, sums);
}

#else

/// Replaces convolve() on GPUs without the instructions of Hopper, where the host does not launch the kernels.
template <int C, int N, int W, bool kDgrad, class... Arguments>
__device__ void convolve(const Arguments&...) {
    __trap();
}

#endif // RG_HOPPER

template <int C, int N, int W, class Reader>
__global__ void __launch_bounds__(kThreads, 1)
    conv2d_forward_hopper_kernel(Tiles tiles, Reader reader, GivenFilters w, ConvEpilogue<bf16> e, FinishStats finish,
                                 unsigned* arrivals, bf16* __restrict__ out) {
    convolve<C, N, W, false>(tiles, reader, w, e, finish, arrivals, out);
}

template <int C, int N, int W, class Reader>
__global__ void __launch_bounds__(kThreads, 1)
    conv2d_dgrad_hopper_kernel(Tiles tiles, Reader reader, GivenFilters w, ConvEpilogue<bf16> e,
                               FinishNormGradientSums finish, unsigned* arrivals, bf16* __restrict__ out) {
    convolve<C, N, W, true>(tiles, reader, w, e, finish, arrivals, out);
}

template <int C, int N, int W, class Reader>
void run_conv2d(const ConvGeometry& g, bool gradient, const Reader& reader, const GivenFilters& w, ConvEpilogue<bf16> e,
                bf16* out, const ChannelReductions& reductions) {
    using T = HopperTile<C, N, W>;
    const Tiles tiles{g.images * (g.from_h / T::kRows), Divisor(g.from_h / T::kRows)};
    const int chunks = g.to_c / N, blocks = std::min(tiles.count, std::max(1, gpu_traits().sm_count / chunks));
    const dim3 grid{unsigned(blocks), unsigned(chunks)};
    const DeviceScratch<float> partials(reductions ? size_t(blocks) * 2 * size_t(g.to_c) : 0);
    if (reductions) e.partials = partials;
    if (reductions.sums) e.terms = reductions.sums->terms<bf16>();
    // Plain reads x in the forward pass and dy in the data gradient, NormReader only x, NormGradReader only dy.
    constexpr bool kOnlyForward = std::is_same_v<Reader, NormReader<bf16>>;
    constexpr bool kOnlyDgrad = std::is_same_v<Reader, NormGradReader<bf16>>;
    if constexpr (!kOnlyDgrad)
        if (!gradient)
            RG_LAUNCH((conv2d_forward_hopper_kernel<C, N, W, Reader>), grid, kThreads, T::kSharedBytes, stream(), tiles,
                      reader, w, e, reductions.finish_stats(partials, g), arrival_counters(), out);
    if constexpr (!kOnlyForward)
        if (gradient)
            RG_LAUNCH((conv2d_dgrad_hopper_kernel<C, N, W, Reader>), grid, kThreads, T::kSharedBytes, stream(), tiles,
                      reader, w, e, reductions.sums ? reductions.sums->finish() : FinishNormGradientSums{},
                      arrival_counters(), out);
}

} // namespace

template <class Reader>
void convolve_on_hopper(const ConvGeometry& g, bool gradient, const Reader& reader, const GivenFilters& w,
                        ConvEpilogue<bf16> e, bf16* out, const ChannelReductions& reductions) {
    const auto with_chunk = [&](auto f) { g.to_c == 32 ? f(Constant<32>{}) : f(Constant<64>{}); };
    const auto with_width = [&](auto f) {
        if (g.from_w == 8) f(Constant<8>{});
        if (g.from_w == 16) f(Constant<16>{});
        if (g.from_w == 32) f(Constant<32>{});
    };
    const auto run = [&](auto c, auto n, auto width) {
        run_conv2d<decltype(c)::value, decltype(n)::value, decltype(width)::value>(g, gradient, reader, w, e, out,
                                                                                   reductions);
    };
    if (g.from_c == 128)
        run(Constant<128>{}, Constant<64>{}, Constant<8>{});
    else
        with_chunk([&](auto n) {
            with_width(
                [&](auto width) { g.from_c == 32 ? run(Constant<32>{}, n, width) : run(Constant<64>{}, n, width); });
        });
}
template void convolve_on_hopper(const ConvGeometry&, bool, const Plain<bf16>&, const GivenFilters&, ConvEpilogue<bf16>,
                                 bf16*, const ChannelReductions&);
template void convolve_on_hopper(const ConvGeometry&, bool, const NormReader<bf16>&, const GivenFilters&,
                                 ConvEpilogue<bf16>, bf16*, const ChannelReductions&);
template void convolve_on_hopper(const ConvGeometry&, bool, const NormGradReader<bf16>&, const GivenFilters&,
                                 ConvEpilogue<bf16>, bf16*, const ChannelReductions&);

} // namespace rg::RG_GPU
