// 3 x 3 convolution at stride 1 and its data gradient for Hopper GPUs (sm_90a): bf16, 32 or 64 channels on both sides,
// images 8, 16 or 32 pixels wide whose height is a multiple of a tile's. Everything else is conv.cu's.
//
// A block stays on its multiprocessor and takes tiles of whole rows in turn. 128 threads bring the tiles, one row more
// above and below, into one of several stages in shared memory; batch norm, ReLU or the gradient past them are applied
// on the way, once for each value instead of once for each of 9 taps. Two groups of 128 threads multiply them with all
// filters, which stay in shared memory, and write the results. The parts meet at barriers: full[stage], empty[stage].
//
//   a stage     [row][octet of channels][pixel, with a zero on either side][8 channels]
//   filters     [column of the filter][row of the filter][octet][result channel][8 channels]
//
// A patch of 8 x 8 pixels is an operand of 64 rows; a tap moves where it begins. The octets of the next image row
// follow those of this one, so the 3 taps of a column of the filter are one sum of 3 C values. The gradient is the same
// with the filters turned round and their channels exchanged. Statistics: each lane keeps mean and squared deviations
// of its pixels (Welford, 1962), or the sums that batch norm's gradient wants of them, lanes are merged at the end, and
// conv.cuh does the rest: the order is fixed by the number of multiprocessors, so a GPU gives the same bits in every
// run.
//
// Not yet run on hardware. What is to be measured there: the stages' number, the rows of a tile, the split of
// registers.
#include "gpu/conv.cuh"
#include "gpu/hopper.cuh"
#include "gpu/lane_sums.cuh"

#include <algorithm>

namespace rg::RG_GPU {

namespace {

constexpr int kGroup = 128, kThreads = 3 * kGroup;
// Registers of a thread. At launch all have 168; those who bring tiles get more, to have a tile's loads under way.
constexpr int kProducerRegisters = 216, kConsumerRegisters = 144;
static_assert(kProducerRegisters + 2 * kConsumerRegisters == 3 * 168);

// ---- tiles ---------------------------------------------------------------------------------------------------------

constexpr int rows_of_tile(int width) { return width == 16 ? 16 : 8; }

/// C channels become N, in images W pixels wide.
template <int C, int N, int W>
struct Tile {
    static constexpr int kOctets = C / 8, kRows = rows_of_tile(W), kPatches = kRows / 8 * (W / 8);
    static constexpr int kStages = C == 32 ? 4 : 3;
    // An odd number of pixels: as many octets as there are begin in different banks.
    static constexpr int kOctetBytes = 16 * (C == 32 ? W + 2 : (W + 2) | 1);
    static constexpr int kRowBytes = kOctets * kOctetBytes, kStageBytes = (kRows + 2) * kRowBytes;
    static constexpr int kFilterBytes = 9 * C * N * 2;
    static constexpr int kSharedBytes = kFilterBytes + kStages * kStageBytes;
};

struct Images {
    int count, height, tiles; // tiles: of all images
};

/// Pixels of which a warp knows the moments; part: (block, group of consumers, warp).
struct WarpPixels {
    int tiles, blocks, patches; // patches: of a tile
    __device__ double operator()(int part) const {
        const int block = part / 8, group = part / 4 % 2;
        const int all = (tiles - block + blocks - 1) / blocks * patches;
        return 16.0 * double((all - group + 1) / 2);
    }
};

#ifdef RG_HOPPER

struct Barriers {
    uint64_t *full, *empty, *filters;
};

// ---- what happens to 8 channels of a pixel on the way: the same as in values.cuh, its coefficients in registers ----

__device__ __forceinline__ uint4 load_16(const bf16* at) { return *reinterpret_cast<const uint4*>(at); }
__device__ __forceinline__ uint4 pack_8(const float (&v)[8]) {
    return make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
}
__device__ __forceinline__ uint4 add_8(uint4 a, uint4 b) {
    float v[8], other[8];
    unpack_8(a, v);
    unpack_8(b, other);
    RG_UNROLL
    for (int i = 0; i < 8; ++i) v[i] += other[i];
    return pack_8(v);
}
__device__ __forceinline__ void keep_8(float (&to)[8], const float* from) {
    RG_UNROLL
    for (int i = 0; i < 8; ++i) to[i] = from[i];
}

/// load(at) begins, on(loaded) ends the way of the 8 channels from c on.
template <class Read>
struct Way;

template <>
struct Way<Plain<bf16>> {
    static constexpr int kLoads = 1; // of 16 bytes
    using Loaded = uint4;
    const bf16* x;
    __device__ Way(const Plain<bf16>& read, int) : x(read.x) {}
    __device__ __forceinline__ Loaded load(size_t at) const { return load_16(x + at); }
    __device__ __forceinline__ uint4 on(const Loaded& x_values) const { return x_values; }
};

template <>
struct Way<Normalised<bf16>> {
    static constexpr int kLoads = 1;
    using Loaded = uint4;
    const bf16* x;
    float scale[8], shift[8];
    bool relu;
    __device__ Way(const Normalised<bf16>& read, int c) : x(read.x), relu(read.relu) {
        keep_8(scale, read.scale + c);
        keep_8(shift, read.shift + c);
    }
    __device__ __forceinline__ Loaded load(size_t at) const { return load_16(x + at); }
    __device__ __forceinline__ uint4 on(const Loaded& x_values) const {
        const Normalised<bf16> read{x, scale, shift, relu};
        float v[8];
        unpack_8(x_values, v);
        RG_UNROLL
        for (int i = 0; i < 8; ++i) v[i] = read.of(v[i], i);
        return pack_8(v);
    }
};

template <>
struct Way<NormGradient<bf16>> {
    static constexpr int kLoads = 2;
    struct Loaded {
        uint4 dz, y;
    };
    const bf16 *dz, *y;
    float scale[8], shift[8], b[8], d[8];
    bool relu;
    __device__ Way(const NormGradient<bf16>& read, int c) : dz(read.dz), y(read.y), relu(read.relu) {
        keep_8(scale, read.scale + c);
        keep_8(shift, read.shift + c);
        keep_8(b, read.b + c);
        keep_8(d, read.d + c);
    }
    __device__ __forceinline__ Loaded load(size_t at) const { return {load_16(dz + at), load_16(y + at)}; }
    __device__ __forceinline__ uint4 on(const Loaded& loaded) const {
        const NormGradient<bf16> read{dz, y, scale, shift, b, d, relu};
        float v[8], other[8];
        unpack_8(loaded.dz, v);
        unpack_8(loaded.y, other);
        RG_UNROLL
        for (int i = 0; i < 8; ++i) v[i] = read.of(v[i], other[i], i);
        return pack_8(v);
    }
};

// ---- those who bring tiles -----------------------------------------------------------------------------------------

template <class T, int C, int W, class Read>
__device__ __forceinline__ void produce(const Images& images, const Read& read, std::byte* stages,
                                        const Barriers& barriers) {
    constexpr int kCells = (T::kRows + 2) * W * T::kOctets; // 8 channels of a pixel each
    constexpr int kPasses = (kCells + kGroup - 1) / kGroup;
    constexpr int kAtOnce = (kPasses <= 10 ? kPasses : kPasses / 2) / Way<Read>::kLoads;
    const int thread = int(threadIdx.x), octet = thread % T::kOctets;
    const Way<Read> way(read, 8 * octet);
    const auto zero = make_uint4(0, 0, 0, 0);

    // Left and right of the image, for good.
    for (int i = thread; i < T::kStages * (T::kRows + 2) * T::kOctets * 2; i += kGroup)
        store_operand(stages + i / 2 * T::kOctetBytes + i % 2 * (W + 1) * 16, zero);

    const int tiles_of_image = images.height / T::kRows;
    for (int i = 0, tile = int(blockIdx.x); tile < images.tiles; tile += int(gridDim.x), ++i) {
        const int stage = i % T::kStages;
        const int image = tile / tiles_of_image, top = tile % tiles_of_image * T::kRows - 1;
        for (int first = 0; first < kPasses; first += kAtOnce) {
            typename Way<Read>::Loaded loaded[kAtOnce] = {};
            const auto row_of = [&](int pass) { return ((first + pass) * kGroup + thread) / (W * T::kOctets); };
            const auto column_of = [&](int pass) { return ((first + pass) * kGroup + thread) / T::kOctets % W; };
            const auto inside = [&](int pass) {
                const int row = row_of(pass);
                return row < T::kRows + 2 && top + row >= 0 && top + row < images.height;
            };
            RG_UNROLL
            for (int pass = 0; pass < kAtOnce; ++pass)
                if (inside(pass))
                    loaded[pass] = way.load(
                        ((size_t(image) * images.height + top + row_of(pass)) * W + column_of(pass)) * C + 8 * octet);
            // The stage's turn before this one; of the first, none: the phase before a barrier's first is over.
            if (first == 0) mbarrier_wait(barriers.empty + stage, (i / T::kStages + 1) % 2);
            RG_UNROLL
            for (int pass = 0; pass < kAtOnce; ++pass)
                if (row_of(pass) < T::kRows + 2)
                    store_operand(stages + stage * T::kStageBytes + row_of(pass) * T::kRowBytes +
                                      octet * T::kOctetBytes + (column_of(pass) + 1) * 16,
                                  inside(pass) ? way.on(loaded[pass]) : zero);
        }
        fence_proxy_async();
        __syncwarp();
        if (thread % 32 == 0) mbarrier_arrive(barriers.full + stage);
    }
}

// ---- those who multiply --------------------------------------------------------------------------------------------

/// Within each quad of lanes, word j of lane t goes to word t of lane j.
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

/// kTerms: e.parts are those of a gradient, of whose terms `terms` has the coefficients in shared memory.
template <class T, int N, int W, bool kTerms>
__device__ __forceinline__ void consume(const Images& images, const std::byte* stages, const std::byte* filters,
                                        const Barriers& barriers, const Epilogue<bf16>& e, const NormTerms<bf16>& terms,
                                        bf16* out) {
    const int group = int(threadIdx.x) / kGroup - 1, warp = int(threadIdx.x) % kGroup / 32;
    const int lane = int(threadIdx.x) % 32, pixel = lane / 4, quarter = lane % 4;
    float bias[N / 4]; // of this lane's channels, 8 (c / 2) + 2 quarter + c % 2
    RG_UNROLL
    for (int c = 0; c < N / 4; ++c) bias[c] = e.bias ? e.bias[c / 2 * 8 + 2 * quarter + c % 2] : 0;
    std::conditional_t<kTerms, TermSums<N>, Moments<N>> of_lane;
    const uint64_t filters_at = descriptor(filters, N * 16, 128);
    mbarrier_wait(barriers.filters, 0);

    const int tiles_of_image = images.height / T::kRows;
    for (int i = 0, tile = int(blockIdx.x); tile < images.tiles; tile += int(gridDim.x), ++i) {
        const int stage = i % T::kStages;
        for (int patch = (group + i * T::kPatches) % 2; patch < T::kPatches; patch += 2) {
            const int down = patch / (W / 8) * 8, right = patch % (W / 8) * 8;
            const auto place = [&](int half, int octet) { // of 8 channels that this lane stores
                const int row = tile % tiles_of_image * T::kRows + down + 2 * warp + half;
                return ((size_t(tile / tiles_of_image) * images.height + row) * W + right + pixel) * N + 32 * octet +
                       8 * quarter;
            };
            float sum[N / 2]; // as gpu/hopper.cuh says: sum[4 j + 2 i + k], row 8 i + pixel, channel 2 j + k of bias's
            RG_UNROLL
            for (int k = 0; k < N / 2; ++k) sum[k] = bias[k / 4 * 2 + k % 2];

            mbarrier_wait(barriers.full + stage, i / T::kStages % 2);
            const uint64_t patch_at = descriptor(stages + stage * T::kStageBytes + down * T::kRowBytes + right * 16,
                                                 T::kOctetBytes, T::kRowBytes);
            wgmma_fence(sum);
            RG_UNROLL
            for (int s = 0; s < 3; ++s) RG_UNROLL
            for (int octet = 0; octet < 3 * T::kOctets; octet += 2)
                wgmma(sum, patch_at + unsigned(s + octet * T::kOctetBytes / 16),
                      filters_at + unsigned((s * 3 * T::kOctets + octet) * N));
            wgmma_commit();
            uint4 x[2][N / 32] = {}; // for the terms: they come while the product is made
            if constexpr (kTerms)
                if (e.parts) {
                    RG_UNROLL
                    for (int k = 0; k < N / 16; ++k) x[k % 2][k / 2] = load_16(terms.x + place(k % 2, k / 2));
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
                    if (e.parts) of_lane.add(values);
                RG_UNROLL
                for (int octet = 0; octet < N / 32; ++octet) { // a lane has 2 channels of each of 4; then 8 of one
                    uint32_t words[4];
                    RG_UNROLL
                    for (int j = 0; j < 4; ++j) {
                        const float low = values[8 * octet + 2 * j], high = values[8 * octet + 2 * j + 1];
                        words[j] = e.relu ? pack_bf16(relu_of(low), relu_of(high)) : pack_bf16(low, high);
                    }
                    transpose_quads(words);
                    auto eight = make_uint4(words[0], words[1], words[2], words[3]);
                    const size_t at = place(half, octet);
                    if (e.residual) eight = add_8(eight, load_16(e.residual + at));
                    *reinterpret_cast<uint4*>(out + at) = eight;
                    if constexpr (kTerms)
                        if (e.parts) of_lane.add(terms, octet, quarter, eight, x[half][octet]);
                }
            }
        }
    }

    if (!e.parts) return;
    of_lane.merge(4);
    of_lane.merge(8);
    of_lane.merge(16);
    if (lane < 4) of_lane.store(e.parts + size_t((int(blockIdx.x) * 2 + group) * 4 + warp) * 2 * N, quarter);
}

#endif // RG_HOPPER

/// A grid of as many blocks as run at once, or fewer; dynamic shared memory: kSharedBytes. Precondition: the GPU is a
/// Hopper, or it traps.
template <int C, int N, int W, class Read>
__global__ void __launch_bounds__(kThreads, 1) convolve_tiles(Images images, Read read, const bf16* __restrict__ packed,
                                                              Epilogue<bf16> e, bf16* __restrict__ out) {
#ifdef RG_HOPPER
    using T = Tile<C, N, W>;
    DYNAMIC_SHARED(std::byte, memory); // filters, stages
    SHARED(uint64_t, full, T::kStages);
    SHARED(uint64_t, empty, T::kStages);
    SHARED(uint64_t, filters, 1);
    constexpr bool kTerms = std::is_same_v<Read, NormGradient<bf16>>; // of other gradients nothing is wanted
    SHARED(float, coefficients, kTerms ? 3 * N : 1);
    const NormTerms<bf16> terms{e.terms.x, coefficients, coefficients + N, coefficients + 2 * N, e.terms.relu};
    if constexpr (kTerms)
        if (const int c = int(threadIdx.x); e.parts && c < N)
            coefficients[c] = e.terms.scale[c], coefficients[N + c] = e.terms.shift[c],
            coefficients[2 * N + c] = e.terms.mean[c];
    const Barriers barriers{full, empty, filters};
    constexpr int kConsumers = T::kPatches > 1 ? 2 : 1; // groups that a tile concerns: its patches go to them by turns
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
        take_registers<kProducerRegisters>();
        produce<T, C, W>(images, read, memory + T::kFilterBytes, barriers);
    } else {
        keep_registers<kConsumerRegisters>();
        consume<T, N, W, kTerms>(images, memory + T::kFilterBytes, memory, barriers, e, terms, out);
    }
#elif defined(__CUDACC__)
    __trap();
#endif
}

/// packed [s][r][in_c / 8][out_c][8 of in_c] from w [k r s c], for the gradient turned round.
__global__ void pack_filters(Geometry g, bool gradient, const bf16* w, bf16* packed) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= 9 * g.in_c * g.out_c) return;
    const int out = i / 8 % g.out_c, in = i / 8 / g.out_c % (g.in_c / 8) * 8 + i % 8;
    const int s = i / (3 * g.in_c * g.out_c), r = i / (g.in_c * g.out_c) % 3;
    const int tap = gradient ? 8 - (3 * r + s) : 3 * r + s;
    packed[i] = gradient ? w[(size_t(in) * 9 + tap) * g.out_c + out] : w[(size_t(out) * 9 + tap) * g.in_c + in];
}

template <int C, int N, int W, class Read>
void convolve(const Geometry& g, bool gradient, const Read& read, const bf16* w, Epilogue<bf16> e, bf16* out,
              const Wanted& wanted) {
    using T = Tile<C, N, W>;
    const Images images{g.images, g.in_h, g.images * (g.in_h / T::kRows)};
    const int blocks = std::min(images.tiles, machine().processors), count = blocks * 8;
    const Scratch<bf16> packed(9 * C * N);
    const Scratch<float> parts(wanted ? size_t(count) * 2 * N : 0);
    if (wanted) e.parts = parts;
    if (wanted.sums) e.terms = wanted.sums->terms<bf16>();
    RG_LAUNCH(pack_filters, blocks_for(9 * C * N, 256), 256, 0, stream(), g, gradient, w, packed);
    RG_LAUNCH((convolve_tiles<C, N, W, Read>), unsigned(blocks), kThreads, T::kSharedBytes, stream(), images, read,
              packed, e, out);
    wanted.finish(parts, unsigned(count), WarpPixels{images.tiles, blocks, T::kPatches}, g);
}

template <int I>
using Constant = std::integral_constant<int, I>;

} // namespace

template <class Read>
bool convolve_on_hopper(const Geometry& g, bool gradient, const Read& read, const bf16* w, Epilogue<bf16> e, bf16* out,
                        const Wanted& wanted) {
    const auto covered = [](int channels) { return channels == 32 || channels == 64; };
    if (!machine().hopper || g.images == 0 || g.r != 3 || g.s != 3 || g.stride != 1 || g.pad != 1 || !covered(g.in_c) ||
        !covered(g.out_c) || (g.in_w != 8 && g.in_w != 16 && g.in_w != 32) || g.in_h % rows_of_tile(g.in_w) != 0)
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
                convolve<decltype(c)::value, decltype(n)::value, decltype(width)::value>(g, gradient, read, w, e, out,
                                                                                         wanted);
            });
        });
    });
    return true;
}
template bool convolve_on_hopper(const Geometry&, bool, const Plain<bf16>&, const bf16*, Epilogue<bf16>, bf16*,
                                 const Wanted&);
template bool convolve_on_hopper(const Geometry&, bool, const Normalised<bf16>&, const bf16*, Epilogue<bf16>, bf16*,
                                 const Wanted&);
template bool convolve_on_hopper(const Geometry&, bool, const NormGradient<bf16>&, const bf16*, Epilogue<bf16>, bf16*,
                                 const Wanted&);

} // namespace rg::RG_GPU
