// Tests the executor, which runs CUDA kernels on the host, with correct kernels and every order of threads.
#include "gpu/bf16.cuh"
#include "gpu/mma.cuh"
#include "gpu/planes.cuh"
#include "gpu/reduce.cuh"

#include <cmath>
#include <doctest/doctest.h>
#include <thread>

namespace rg::RG_GPU {
namespace {

using simt::kAllLanes;

// ---- correct kernels ----

__global__ void indices_kernel(int* out) {
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] += int(block * 1000 + thread);
}

template <class T>
__global__ void __launch_bounds__(1024) sum_kernel(const T* __restrict__ in, T* __restrict__ out, int n) {
    T sum = 0;
    for (int i = int(threadIdx.x); i < n; i += int(blockDim.x)) sum += in[blockIdx.x * unsigned(n) + unsigned(i)];
    sum = block_sum(sum);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

__global__ void transpose_kernel(const float* in, float* out, int n) {
    using Row = float[33];
    SHARED(Row, tile, 32);
    static_assert(sizeof tile == 32 * 33 * 4);
    for (int i = int(threadIdx.y); i < n; i += int(blockDim.y)) tile[i][threadIdx.x] = in[i * n + int(threadIdx.x)];
    __syncthreads();
    for (int i = int(threadIdx.y); i < n; i += int(blockDim.y)) out[i * n + int(threadIdx.x)] = tile[threadIdx.x][i];
}

template <class T>
__global__ void shuffle_kernel(T* out) {
    const int lane = int(threadIdx.x);
    const T value = T(lane * 10);
    T* mine = out + lane * 6;
    mine[0] = __shfl_sync(kAllLanes, value, 5);
    mine[1] = __shfl_sync(kAllLanes, value, 1, 8);
    mine[2] = __shfl_up_sync(kAllLanes, value, 3u, 16);
    mine[3] = __shfl_down_sync(kAllLanes, value, 2u, 8);
    mine[4] = __shfl_xor_sync(kAllLanes, value, 12, 16);
    mine[5] = lane < 8 ? __shfl_xor_sync(0xffu, value, 4) : T(-1);
}

__global__ void vote_kernel(unsigned* out) {
    const int lane = int(threadIdx.x);
    out[lane * 4] = __ballot_sync(kAllLanes, lane % 3 == 0);
    out[lane * 4 + 1] = unsigned(__any_sync(kAllLanes, lane == 7)) + 2 * unsigned(__any_sync(kAllLanes, lane > 31));
    out[lane * 4 + 2] = unsigned(__all_sync(kAllLanes, lane < 32)) + 2 * unsigned(__all_sync(kAllLanes, lane < 31));
    // The two halves of the warp take different branches, and each half votes for itself.
    out[lane * 4 + 3] = lane < 16 ? __ballot_sync(0xffffu, lane & 1) : __ballot_sync(0xffff0000u, lane & 2);
}

/// Computes d [16 x 8] = a [16 x 16] b [16 x 8], row-major bf16 through shared memory and ldmatrix.
__global__ void mma_bf16_kernel(const bf16* a, const bf16* b, float* d) {
    SHARED(bf16, a_tile, 16 * 16);
    SHARED(bf16, b_tile, 16 * 8);
    const int lane = int(threadIdx.x), g = lane / 4, t = lane % 4;
    for (int i = lane; i < 16 * 16; i += 32) a_tile[i] = a[i];
    for (int i = lane; i < 16 * 8; i += 32) b_tile[i] = b[i];
    __syncwarp();
    uint32_t a_regs[4], b_twice[4];
    float sums[4] = {};
    ldmatrix_x4(a_regs, a_tile + lane % 16 * 16 + lane / 16 * 8);
    ldmatrix_x4_trans(b_twice, b_tile + lane % 16 * 8);
    mma_bf16_16x8x16(sums, a_regs, {b_twice[0], b_twice[1]});
    for (int i = 0; i < 4; ++i) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sums[i];
}

/// Sets d to one sum per lane: of 16 * 0.375 * values[i] over all i. The values have at most 16 significant bits, so
/// two planes hold them exactly.
__global__ void multiply_planes_kernel(const float* values, int count, float* d) {
    float sums[2][4] = {};
    const uint32_t factor = pack_bf16(0.375f, 0.375f), columns[2][4] = {{factor, factor, factor, factor}, {}};
    for (int i = 0; i < count; ++i) {
        const float rest = values[i] - to_float(to_bf16(values[i]));
        const uint32_t high = pack_bf16(values[i], values[i]), low = pack_bf16(rest, rest);
        const uint32_t rows[2][2][4] = {{{high, high, high, high}, {high, high, high, high}},
                                        {{low, low, low, low}, {low, low, low, low}}};
        multiply_planes<1>(rows, columns, [&](int m, int) -> float(&)[4] { return sums[m]; });
    }
    d[threadIdx.x] = sums[1][3];
}

/// Loads four 8 x 8 matrices of the numbers 0 to 255, and writes the registers of each lane.
__global__ void ldmatrix_kernel(uint32_t* out) {
    SHARED(uint16_t, tile, 256);
    const int lane = int(threadIdx.x);
    for (int i = lane; i < 256; i += 32) tile[i] = uint16_t(i);
    __syncwarp();
    uint32_t r[4];
    ldmatrix_x4(r, tile + lane * 8);
    for (int i = 0; i < 4; ++i) out[lane * 8 + i] = r[i];
    ldmatrix_x4_trans(r, tile + lane * 8);
    for (int i = 0; i < 4; ++i) out[lane * 8 + 4 + i] = r[i];
}

} // namespace

TEST_SUITE("simt") {
    TEST_CASE("simt: runs every thread of every block once, with its indices") {
        std::vector<int> out(size_t(2 * 3 * 2) * (4 * 3 * 5), 7);
        simt::run_in_every_order(
            [&] { RG_LAUNCH(indices_kernel, dim3(2, 3, 2), dim3(4, 3, 5), 0, nullptr, out.data()); }, out);
        for (int i = 0; i < int(out.size()); ++i) CHECK(out[size_t(i)] == 7 + i / 60 * 1000 + i % 60);
    }

    TEST_CASE_TEMPLATE("simt: sums over a block", T, float, double) {
        for (int threads : {32, 64, 256, 1024}) {
            CAPTURE(threads);
            const int n = 1000, blocks = 3;
            std::vector<T> in(size_t(n * blocks)), out(blocks, T(-1));
            for (size_t i = 0; i < in.size(); ++i) in[i] = T(i % 17);
            simt::run_in_every_order(
                [&] { RG_LAUNCH(sum_kernel<T>, blocks, unsigned(threads), 0, nullptr, in.data(), out.data(), n); },
                out);
            for (int b = 0; b < blocks; ++b) {
                T expected = 0;
                for (int i = 0; i < n; ++i) expected += in[size_t(b * n + i)];
                CHECK(out[size_t(b)] == expected);
            }
        }
    }

    TEST_CASE("simt: transposes through two-dimensional shared memory") {
        std::vector<float> in(32 * 32), out(32 * 32);
        for (size_t i = 0; i < in.size(); ++i) in[i] = float(i);
        simt::run_in_every_order(
            [&] { RG_LAUNCH(transpose_kernel, 1, dim3(32, 8), 0, nullptr, in.data(), out.data(), 32); }, out);
        for (size_t i = 0; i < in.size(); ++i) CHECK(out[i] == in[i % 32 * 32 + i / 32]);
    }

    TEST_CASE_TEMPLATE("simt: shuffles", T, int, unsigned, float, double) {
        std::vector<T> out(32 * 6);
        simt::run_in_every_order([&] { RG_LAUNCH(shuffle_kernel<T>, 1, 32, 0, nullptr, out.data()); }, out);
        for (int lane = 0; lane < 32; ++lane) {
            CAPTURE(lane);
            const T* const mine = out.data() + lane * 6;
            CHECK(mine[0] == T(50));
            CHECK(mine[1] == T((lane / 8 * 8 + 1) * 10));
            CHECK(mine[2] == T((lane % 16 < 3 ? lane : lane - 3) * 10));
            CHECK(mine[3] == T((lane % 8 > 5 ? lane : lane + 2) * 10));
            CHECK(mine[4] == T((lane ^ 12) * 10));
            CHECK(mine[5] == (lane < 8 ? T((lane ^ 4) * 10) : T(-1)));
        }
    }

    TEST_CASE("simt: votes within a warp, and within a part of it") {
        std::vector<unsigned> out(32 * 4);
        simt::run_in_every_order([&] { RG_LAUNCH(vote_kernel, 1, 32, 0, nullptr, out.data()); }, out);
        for (size_t lane = 0; lane < 32; ++lane) {
            CHECK(out[lane * 4] == 0x49249249u);
            CHECK(out[lane * 4 + 1] == 1);
            CHECK(out[lane * 4 + 2] == 1);
            CHECK(out[lane * 4 + 3] == (lane < 16 ? 0xaaaau : 0xcccc0000u));
        }
    }

    TEST_CASE("simt: bf16 products on tensor cores agree with plain loops") {
        std::vector<bf16> a(16 * 16), b(16 * 8);
        for (size_t i = 0; i < a.size(); ++i)
            a[i] = to_bf16(float(int(i * 37 % 251) - 125)); // different values, exact in bf16
        for (size_t i = 0; i < b.size(); ++i) b[i] = to_bf16(float(int(i) - 60));
        std::vector<float> d(16 * 8);
        simt::run_in_every_order([&] { RG_LAUNCH(mma_bf16_kernel, 1, 32, 0, nullptr, a.data(), b.data(), d.data()); },
                                 d);
        for (size_t row = 0; row < 16; ++row)
            for (size_t column = 0; column < 8; ++column) {
                float sum = 0;
                for (size_t k = 0; k < 16; ++k) sum += to_float(a[row * 16 + k]) * to_float(b[k * 8 + column]);
                CHECK(d[row * 8 + column] == sum);
            }
    }

    TEST_CASE("simt: long sums of f32 on tensor cores do not drift, although each product is truncated") {
        CHECK(simt::truncate(1 + 0x1.8p-24) == 1);
        CHECK(simt::truncate(-1 - 0x1.8p-24) == -1);
        CHECK(simt::truncate(-0x1p-150) == 0);
        CHECK(std::isinf(simt::truncate(INFINITY)));
        CHECK(std::isnan(simt::truncate(NAN)));
        std::vector<float> values(500), d(32);
        double sum = 0;
        for (size_t i = 0; i < values.size(); ++i) {
            values[i] = 1 + float(i * 37 % 251) * 257 / 65536;
            sum += 6 * double(values[i]);
        }
        const auto run = [&] {
            RG_LAUNCH(multiply_planes_kernel, 1, 32, 0, nullptr, values.data(), int(values.size()), d.data());
        };
        simt::run_in_every_order(run, d);
        for (const float got : d) CHECK(std::abs(double(got) - sum) < 1e-6 * sum); // if sums drifted: 2e-5
    }

    TEST_CASE("simt: splits f32 into planes, and packs bf16") {
        const Octet octet = {{1, -1 / 3.0f, 1 + 0x1p-8f, 3.3e38f, -1e-30f, 65535, 0, -0.0f}};
        alignas(16) bf16 planes[24] = {};
        store_planes<float>(planes, 16, octet);
        for (int i = 0; i < 8; ++i) {
            const double value = octet.v[i], sum = double(to_float(planes[i])) + double(to_float(planes[16 + i]));
            CHECK(std::abs(sum - value) <= 0x1p-17 * std::abs(value));
            CHECK(std::abs(to_float(planes[16 + i])) <= 0x1p-8f * std::abs(octet.v[i]));
            CHECK(planes[8 + i].bits == 0);
        }
        store_planes<bf16>(planes + 8, 8, octet); // one plane
        CHECK(to_float(planes[9]) == to_float(planes[1]));
        CHECK(to_float(planes[17]) + to_float(planes[1]) == doctest::Approx(-1 / 3.0).epsilon(1e-5));
        const uint32_t pair = pack_bf16(1.5f, -2.0f);
        CHECK(pair == 0xc0003fc0u);
        CHECK(unpack_bf16(pair).x == 1.5f);
        CHECK(unpack_bf16(pair).y == -2.0f);
    }

    TEST_CASE("simt: ldmatrix distributes rows and columns over the lanes") {
        std::vector<uint32_t> out(32 * 8);
        simt::run_in_every_order([&] { RG_LAUNCH(ldmatrix_kernel, 1, 32, 0, nullptr, out.data()); }, out);
        for (uint32_t lane = 0; lane < 32; ++lane)
            for (uint32_t m = 0; m < 4; ++m) {
                const uint32_t g = lane / 4, t = lane % 4;
                const uint32_t straight = (64 * m + 8 * g + 2 * t) | (64 * m + 8 * g + 2 * t + 1) << 16;
                const uint32_t transposed = (64 * m + 16 * t + g) | (64 * m + 16 * t + 8 + g) << 16;
                CHECK(out[lane * 8 + m] == straight);
                CHECK(out[lane * 8 + 4 + m] == transposed);
            }
    }

    TEST_CASE("simt: several threads launch at once") {
        std::vector<float> in(512, 1.0f), out(4);
        std::vector<std::thread> threads;
        for (size_t i = 0; i < out.size(); ++i)
            threads.emplace_back([&, i] {
                const int n = 128 * int(i + 1);
                for (int round = 0; round < 20; ++round)
                    RG_LAUNCH(sum_kernel<float>, 1, 64, 0, nullptr, in.data(), out.data() + i, n);
            });
        for (std::thread& thread : threads) thread.join();
        CHECK(out == std::vector<float>{128, 256, 384, 512});
    }
}
} // namespace rg::RG_GPU
