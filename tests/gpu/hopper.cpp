// The executor's model of what Hopper GPUs have beyond others (gpu/hopper.cuh): products in a pipeline of two stages,
// and what it says when one part of that pipeline is wrong.
#include "core/bf16.h"
#include "gpu/hopper.cuh"
#include "tests/simt/sanitizers.h"
#include "tests/gpu/simt_check.h"

#include <doctest/doctest.h>

namespace rg::RG_GPU {
namespace {

constexpr int kTiles = 5, kStages = 2, kSteps = 2, kThreads = 256;      // a tile: 64 rows, kSteps * 16 values
constexpr int kRowBytes = kSteps * 2 * 128, kTileBytes = 8 * kRowBytes; // [row / 8][value / 8][row % 8][value % 8]

enum class Fault {
    none, no_proxy_fence, plain_store, store_after_fence, no_product_fence, no_product_wait, no_commit, written_sums,
    early_release, full_parity, empty_parity, no_copy_wait, no_waiter, few_bytes, unfenced_barrier,
    uninitialised_barrier, many_arrivals, many_phases, lazy_warp, other_product, lanes_apart, strides_swapped,
    next_values, next_rows, beyond
};

/// d [tile][64][N] = a [tile][64][32] b [N][32] + 1; b comes as it lies in shared memory: [value / 8][N][8].
template <int N>
__global__ void __launch_bounds__(kThreads) products_kernel(const uint4* a, const uint4* b, float* d, Fault fault) {
    DYNAMIC_SHARED(std::byte, stages);
    SHARED(uint4, columns, kSteps * 2 * N);
    SHARED(uint64_t, full, kStages);
    SHARED(uint64_t, empty, kStages);
    SHARED(uint64_t, arrived, 1);
    const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32 % 4;
    const auto is = [&](Fault f) { return fault == f; };
    if (thread == 0) {
        for (int i = 0; i < kStages; ++i) mbarrier_init(full + i, 4), mbarrier_init(empty + i, 4);
        if (!is(Fault::uninitialised_barrier)) mbarrier_init(arrived, 1);
        if (!is(Fault::unfenced_barrier)) fence_proxy_async();
        mbarrier_arrive_expect(arrived, is(Fault::few_bytes) ? 16 : int(sizeof columns));
        if (is(Fault::many_arrivals)) mbarrier_arrive(arrived);
        bulk_copy(columns, b, sizeof columns, arrived);
    }
    __syncthreads();
    if (thread < 128) {
        for (int tile = 0; tile < kTiles; ++tile) {
            const int stage = tile % kStages;
            mbarrier_wait(empty + stage, (tile / kStages + (is(Fault::empty_parity) ? 0 : 1)) % 2);
            for (int i = thread; i < 64 * kSteps * 2; i += 128) { // [row][value / 8]
                const int row = i / (kSteps * 2), octet = i % (kSteps * 2);
                std::byte* const to = stages + stage * kTileBytes + row / 8 * kRowBytes + octet * 128 + row % 8 * 16;
                const uint4 values = a[tile * 64 * kSteps * 2 + i];
                if (is(Fault::plain_store))
                    *reinterpret_cast<uint4*>(to) = values;
                else
                    store_operand(to, values);
            }
            if (!is(Fault::no_proxy_fence)) fence_proxy_async();
            if (is(Fault::store_after_fence) && thread == 0)
                *reinterpret_cast<unsigned*>(stages + stage * kTileBytes) += 1;
            __syncwarp();
            if (lane == 0) mbarrier_arrive(full + stage);
            if (is(Fault::many_phases) && lane == 1) mbarrier_arrive(full + stage);
        }
        return;
    }
    if (!is(Fault::no_copy_wait) && !is(Fault::no_waiter)) mbarrier_wait(arrived, 0);
    if (is(Fault::no_waiter)) return;
    for (int tile = 0; tile < kTiles; ++tile) {
        const int stage = tile % kStages;
        mbarrier_wait(full + stage, (tile / kStages + (is(Fault::full_parity) ? 1 : 0)) % 2);
        float sum[N / 2];
        for (float& s : sum) s = 1;
        if (!is(Fault::no_product_fence)) wgmma_fence(sum);
        uint64_t rows = descriptor(stages + stage * kTileBytes, 128, kRowBytes);
        uint64_t filters = descriptor(columns, 16 * N, 128);
        if (is(Fault::strides_swapped)) rows = descriptor(stages + stage * kTileBytes, kRowBytes, 128);
        if (is(Fault::next_values)) filters = descriptor(columns, 16 * N - 16, 128);
        if (is(Fault::next_rows)) rows = descriptor(stages + stage * kTileBytes, 128, kRowBytes + 16);
        if (is(Fault::beyond) && stage == kStages - 1) rows += unsigned(kRowBytes / 16);
        if (is(Fault::lanes_apart) && lane == 7) rows += 1;
        if (is(Fault::other_product) && warp == 2) filters += 8;
        if (!is(Fault::lazy_warp) || warp != 1)
            for (int step = 0; step < kSteps; ++step)
                wgmma(sum, rows + unsigned(step * 256 / 16), filters + unsigned(step * 2 * N));
        if (!is(Fault::no_commit)) wgmma_commit();
        if (is(Fault::early_release) && lane == 0) mbarrier_arrive(empty + stage);
        if (is(Fault::written_sums)) sum[3] = 1;
        if (!is(Fault::no_product_wait)) wgmma_wait(sum);
        __syncwarp();
        if (!is(Fault::early_release) && lane == 0) mbarrier_arrive(empty + stage);
        for (int i = 0; i < N / 2; ++i) {
            const int row = 16 * warp + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            d[(tile * 64 + row) * N + column] = sum[i];
        }
    }
}

template <int N>
using Columns = std::integral_constant<int, N>;

template <int N>
struct Products {
    std::vector<bf16> a = std::vector<bf16>(kTiles * 64 * 32), b = std::vector<bf16>(N * 32);
    alignas(16) bf16 b_packed[N * 32];
    std::vector<float> d = std::vector<float>(kTiles * 64 * N), expected = d;
    Products() {
        for (size_t i = 0; i < a.size(); ++i) a[i] = to_bf16(float(int(i * 37 % 251) - 125)); // exact in bf16
        for (size_t i = 0; i < b.size(); ++i) b[i] = to_bf16(float(int(i * 11 % 67) - 30));
        for (size_t c = 0; c < N; ++c)
            for (size_t k = 0; k < 32; ++k) b_packed[(k / 8 * N + c) * 8 + k % 8] = b[c * 32 + k];
        for (size_t row = 0; row < kTiles * 64; ++row)
            for (size_t c = 0; c < N; ++c) {
                float sum = 1;
                for (size_t k = 0; k < 32; ++k) sum += to_float(a[row * 32 + k]) * to_float(b[c * 32 + k]);
                expected[row * N + c] = sum;
            }
    }
    void run(Fault fault, unsigned threads = kThreads) {
        simt::run_in_every_order(
            [&] {
                RG_LAUNCH(products_kernel<N>, 2, threads, kStages * kTileBytes, nullptr,
                          reinterpret_cast<const uint4*>(a.data()), reinterpret_cast<const uint4*>(b_packed), d.data(),
                          fault);
            },
            d);
    }
};

/// d [64][N] = a b for operands that come as they lie in shared memory: a [k / 8][row / 8][k % 8][row % 8] with 16 k,
/// likewise b with columns. With `swapped`, the descriptor of a has its distances in the wrong order.
template <int N>
__global__ void __launch_bounds__(128)
    transposed_product_kernel(const uint4* a, const uint4* b, float* d, bool swapped) {
    SHARED(uint4, rows, 16 * 64 / 8);
    SHARED(uint4, columns, 16 * N / 8);
    const int thread = int(threadIdx.x), lane = thread % 32;
    for (int i = thread; i < 16 * 64 / 8; i += 128) store_operand(rows + i, a[i]);
    for (int i = thread; i < 16 * N / 8; i += 128) store_operand(columns + i, b[i]);
    fence_proxy_async();
    __syncthreads();
    float sum[N / 2] = {};
    wgmma_fence(sum);
    wgmma_transposed(sum, swapped ? descriptor(rows, 128, 64 / 8 * 128) : descriptor(rows, 64 / 8 * 128, 128),
                     descriptor(columns, N / 8 * 128, 128));
    wgmma_commit();
    wgmma_wait(sum);
    for (int i = 0; i < N / 2; ++i) {
        const int row = 16 * (thread / 32) + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        d[row * N + column] = sum[i];
    }
}

constexpr const char* kHere = "hopper.cpp:";

void check(Fault fault, std::initializer_list<std::string> parts) {
    CAPTURE(int(fault));
    Products<32> products;
    const auto run = [&] { products.run(fault); };
    if (simt::kTsan && (fault == Fault::full_parity || fault == Fault::early_release))
        return check_sanitizer(run, {"data race", kHere});
    check_fault(run, parts);
}

} // namespace

TEST_SUITE("simt") {
    TEST_CASE_TEMPLATE("simt: a pipeline of a warpgroup's products against plain loops", Width, Columns<32>,
                       Columns<64>, Columns<128>) {
        Products<Width::value> products;
        products.run(Fault::none);
        CHECK(products.d == products.expected);
    }

    TEST_CASE_TEMPLATE("simt: products of transposed operands against plain loops", Width, Columns<8>, Columns<32>,
                       Columns<64>, Columns<96>, Columns<128>, Columns<192>) {
        constexpr size_t N = Width::value;
        alignas(16) bf16 a[16 * 64], b[16 * N];
        for (size_t i = 0; i < 16 * 64; ++i) a[i] = to_bf16(float(int(i * 37 % 251) - 125)); // exact in bf16
        for (size_t i = 0; i < 16 * N; ++i) b[i] = to_bf16(float(int(i * 11 % 67) - 30));
        std::vector<float> d(64 * N), expected = d;
        for (size_t k = 0; k < 16; ++k)
            for (size_t row = 0; row < 64; ++row)
                for (size_t c = 0; c < N; ++c)
                    expected[row * N + c] += to_float(a[k / 8 * 512 + row / 8 * 64 + k % 8 * 8 + row % 8]) *
                                             to_float(b[k / 8 * 8 * N + c / 8 * 64 + k % 8 * 8 + c % 8]);
        const auto run = [&](bool swapped) {
            RG_LAUNCH(transposed_product_kernel<N>, 1, 128, 0, nullptr, reinterpret_cast<const uint4*>(a),
                      reinterpret_cast<const uint4*>(b), d.data(), swapped);
        };
        run(false);
        CHECK(d == expected);
        const std::string error = error_of([&] { run(true); });
        CHECK((!error.empty() || d != expected));
    }

    TEST_CASE("simt: operands that a product must not read yet") {
        check(Fault::no_proxy_fence,
              {"products_kernel<N>: block (0,0,0): thread ", "wgmma: a, row 0, value 0: reads an operand ",
               "has stored at ", "without fence_proxy_async()", kHere});
        check(Fault::plain_store, {"wgmma: a, row 0", "was not written by store_operand()", kHere});
        check(Fault::store_after_fence, {"wgmma: a, row 0", "overwritten without store_operand()"});
        check(Fault::no_copy_wait,
              {"wgmma: b, row 0", "the destination of the copy at ", "has not been waited for", kHere});
        check(Fault::full_parity, {"wgmma: a, row ", "reads "});
        check(Fault::early_release, {"products_kernel<N>: output 0 differs at byte ", "a wait is missing"});
        check(Fault::beyond, {"wgmma: a, row 56, is not within a shared array"});
    }

    TEST_CASE("simt: sums without the fence, the wait or the commit of their products") {
        check(Fault::no_product_fence, {"wgmma: no wgmma_fence()", kHere});
        for (Fault fault : {Fault::no_product_wait, Fault::no_commit})
            check(fault, {"block (0,0,0): thread 155: returned without waiting for this product [", kHere});
        check(Fault::written_sums, {"wgmma: lane 0 has written sum 3 before it waited"});
    }

    TEST_CASE("simt: warps and lanes that do not issue the same product") {
        check(Fault::lazy_warp, {"block (0,0,0): warp 5 issued 0 of the 10 products of its warpgroup"});
        check(Fault::other_product, {"wgmma: another warp of the group has issued another product"});
        check(Fault::lanes_apart, {"wgmma: descriptors differ between lanes 0 and 7"});
        check_fault([] { Products<32>().run(Fault::none, 160); }, {"wgmma: the warpgroup has fewer than 4 warps"});
    }

    TEST_CASE("simt: barriers that are misused") {
        check(Fault::empty_parity, {"no thread can go on: threads ", "wait in mbarrier_wait at ", kHere});
        check(Fault::few_bytes, {"no thread can go on: ", "threads 128-255 wait in mbarrier_wait at "});
        check(Fault::no_waiter, {"no thread can go on: ", "threads 128-255 returned"});
        check(Fault::unfenced_barrier, {"thread 0: bulk copy: no fence_proxy_async() since its barrier"});
        check(Fault::uninitialised_barrier, {"thread 0: this barrier has not been initialised"});
        check(Fault::many_phases, {"no thread can go on: threads "});
        check(Fault::many_arrivals, {"more arrivals than the 1 of this barrier"});
    }

    TEST_CASE("simt: operands that are not where the descriptor says") {
        if (simt::kTsan) return; // wrong results, and by chance races: they may be the next tile's
        for (Fault fault : {Fault::strides_swapped, Fault::next_values, Fault::next_rows}) {
            CAPTURE(int(fault));
            Products<64> products;
            const std::string error = error_of([&] { products.run(fault); });
            CHECK((!error.empty() || products.d != products.expected));
        }
    }
}
} // namespace rg::RG_GPU
