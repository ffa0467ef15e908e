// What the executor says of faulty kernels, each of which a GPU may run without a word.
//
// A fault is found if the error names the kernel and, where there is one, the line: a constant after the kernel counts
// back to it.
#include "gpu/reduce.cuh"
#include "tests/op_check.h"
#include "tests/simt/sanitizers.h"
#include "tests/gpu/simt_check.h"

#include <cmath>
#include <doctest/doctest.h>

namespace rg::RG_GPU {
namespace {

using simt::kAllLanes;

__global__ void missing_barrier_kernel(float* out) {
    SHARED(float, values, 64);
    const int thread = int(threadIdx.x);
    values[thread] = float(thread);
    out[thread] = values[(thread + 1) % 64];
}
constexpr int kMissingBarrier = __LINE__ - 3;

/// Two sums over the block by way of the same shared memory.
__global__ void written_too_early_kernel(float* out) {
    SHARED(float, partial, 2);
    const int thread = int(threadIdx.x);
    float sum = 0;
    for (int i = 0; i < 2; ++i) {
        const float mine = warp_sum(float(thread + i));
        if (thread % 32 == 0) partial[thread / 32] = mine;
        __syncthreads();
        sum += warp_sum(partial[thread % 2]);
        if (i == 0) __syncwarp(kAllLanes); // a warp's barrier is not enough
    }
    out[thread] = sum;
}
constexpr int kWrittenTooEarly = __LINE__ - 7;

__global__ void write_beyond_kernel(float* out, int index) {
    SHARED(float, first, 10);
    SHARED(float, second, 64);
    float* const pointer = first;
    second[threadIdx.x] = 1;
    if (threadIdx.x == 3) pointer[index] = 1;
    __syncthreads();
    out[threadIdx.x] = second[threadIdx.x];
}
constexpr int kWriteBeyond = __LINE__ - 4;

__global__ void read_beyond_kernel(float* out) {
    SHARED(float, values, 64);
    const float* const pointer = values;
    values[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = pointer[threadIdx.x + 1];
}
constexpr int kReadBeyond = __LINE__ - 2;

__global__ void global_kernel(const float* in, float* out, int read_at, int write_at) {
    out[int(threadIdx.x) + write_at] = in[int(threadIdx.x) + read_at];
}
constexpr int kGlobal = __LINE__ - 2;

__global__ void early_return_kernel(int n) {
    if (int(threadIdx.x) >= n) return;
    __syncthreads();
}
constexpr int kEarlyReturn = __LINE__ - 2;

__global__ void divergent_kernel() {
    if (threadIdx.x % 64 < 32)
        __syncthreads();
    else
        __syncthreads();
}
constexpr int kDivergent = __LINE__ - 4;

__global__ void width_kernel(int* out, int width) { out[threadIdx.x] = __shfl_xor_sync(kAllLanes, 1, 1, width); }
constexpr int kWidth = __LINE__ - 1;

__global__ void mask_kernel(int* out, unsigned mask, int source) {
    out[threadIdx.x] = __shfl_sync(mask, int(threadIdx.x), source);
}
constexpr int kMask = __LINE__ - 2;

__global__ void lane_left_kernel(int* out) {
    if (threadIdx.x == 9) return;
    out[threadIdx.x] = __any_sync(kAllLanes, 1);
}
constexpr int kLaneLeft = __LINE__ - 2;

__global__ void lane_elsewhere_kernel(int* out) {
    if (threadIdx.x == 9) __syncthreads();
    out[threadIdx.x] = __any_sync(kAllLanes, 1);
}
constexpr int kLaneElsewhere = __LINE__ - 2;

__global__ void different_collectives_kernel(int* out) {
    out[threadIdx.x] = threadIdx.x < 16 ? __any_sync(kAllLanes, 1) : __all_sync(kAllLanes, 1);
}
constexpr int kDifferent = __LINE__ - 2;

__global__ void large_kernel() {
    SHARED(float, tile, 12 * 1024 + 1);
    tile[0] = 0;
}
constexpr int kLarge = __LINE__ - 3;

__global__ void never_written_kernel(float* out) {
    SHARED(float, values, 32);
    out[blockIdx.x * 32 + threadIdx.x] = values[threadIdx.x];
    values[threadIdx.x] = 1; // for the next block to find, if memory were left as it is
}

struct Counted {
    explicit Counted(int* count) : count(count) { ++*count; }
    ~Counted() { --*count; }
    int* count;
};
__global__ void unwound_kernel(int* alive) {
    const Counted counted(alive + threadIdx.x);
    __syncthreads();
    if (threadIdx.x == 40) __shfl_sync(kAllLanes, 1, 1, 3);
    __syncthreads();
}

__global__ void count_kernel(float* out) {
    const float count = block_sum(1.0f);
    if (threadIdx.x == 0) *out = count;
}

// ---- what the tests share ----

/// A line of this file, as errors give it.
std::string line(int number) { return cat("faults.cpp:", number); }

} // namespace

TEST_SUITE("simt") {
    TEST_CASE("simt: a missing barrier shows between the orders of threads") {
        std::vector<float> out(64);
        const auto run = [&] {
            simt::run_in_every_order([&] { RG_LAUNCH(missing_barrier_kernel, 1, 64, 0, nullptr, out.data()); }, out);
        };
        if (simt::kTsan) return check_sanitizer(run, {"data race", line(kMissingBarrier), line(kMissingBarrier + 1)});
        check_fault(run,
                    {"missing_barrier_kernel: output 0 differs at byte ", "reverse instead of forward", "a barrier"});
    }

    TEST_CASE("simt: a missing barrier between reading and writing again shows, one warp ahead of another") {
        std::vector<float> out(64);
        const auto run = [&] {
            simt::run_in_every_order([&] { RG_LAUNCH(written_too_early_kernel, 1, 64, 0, nullptr, out.data()); }, out);
        };
        if (simt::kTsan) return check_sanitizer(run, {"data race", line(kWrittenTooEarly)});
        check_fault(run, {"written_too_early_kernel: output 0 differs at byte ", "a barrier"});
    }

    TEST_CASE("simt: writes beyond the ends of shared arrays") {
        std::vector<float> out(64);
        for (int index : {10, 12, -1}) {
            CAPTURE(index);
            const auto run = [&] { RG_LAUNCH(write_beyond_kernel, 2, 64, 0, nullptr, out.data(), index); };
            if (simt::kAsan)
                check_sanitizer(run, {"use-after-poison", line(kWriteBeyond)});
            else
                check_fault(run,
                            {"write_beyond_kernel: block (0,0,0): shared array first of 40 bytes was written up to ",
                             index < 0 ? " 4 bytes before its beginning" : cat(4 * (index - 9), " bytes past"),
                             line(kWriteBeyond + 1)});
        }
    }

    TEST_CASE("simt: reads beyond the end of a shared array are NaN, or end the program") {
        std::vector<float> out(64);
        const auto run = [&] { RG_LAUNCH(read_beyond_kernel, 1, 64, 0, nullptr, out.data()); };
        if (simt::kAsan) return check_sanitizer(run, {"use-after-poison", line(kReadBeyond)});
        run();
        CHECK(out[62] == 1);
        CHECK(std::isnan(out[63]));
    }

    // Without AddressSanitizer, what the op tests would see: a guard that is damaged, or its bytes in a result.
    TEST_CASE("simt: reads and writes beyond the ends of buffers in global memory") {
        for (const auto& at : {std::pair{0, 0}, {1, 0}, {-1, 0}, {0, 1}, {0, -1}}) {
            const int read_at = at.first, write_at = at.second;
            INFO("read_at ", read_at, ", write_at ", write_at);
            if (simt::kAsan && (read_at || write_at)) {
                std::vector<float> in(64), out(64);
                check_sanitizer(
                    [&] { RG_LAUNCH(global_kernel, 1, 64, 0, nullptr, in.data(), out.data(), read_at, write_at); },
                    {"heap-buffer-overflow", read_at ? "READ of size 4" : "WRITE of size 4", line(kGlobal)});
                continue;
            }
            const Tensor zeros = Tensor::zeros({64});
            const Guarded in(zeros, 64, true), out({64}, DType::f32, 64);
            RG_LAUNCH(global_kernel, 1, 64, 0, nullptr, in.value.data<float>(), out.value.data<float>(), read_at,
                      write_at);
            CHECK(in.intact());
            CHECK(out.intact() == (write_at == 0));
            if (write_at == 0) CHECK(same_bits(out.value, zeros) == (read_at == 0));
        }
    }

    TEST_CASE("simt: shared memory that was never written is NaN in every block") {
        std::vector<float> out(96);
        RG_LAUNCH(never_written_kernel, 3, 32, 0, nullptr, out.data());
        for (float value : out) CHECK(std::isnan(value));
    }

    TEST_CASE("simt: threads that return before a barrier, and barriers in branches") {
        check_fault([] { RG_LAUNCH(early_return_kernel, 3, 64, 0, nullptr, 40); },
                    {"early_return_kernel: block (0,0,0): ", "threads 0-39 wait in __syncthreads at ",
                     line(kEarlyReturn), "threads 40-63 returned"});
        check_fault([] { RG_LAUNCH(divergent_kernel, 1, 128, 0, nullptr); },
                    {"divergent_kernel: block (0,0,0): ", "threads 0-31,64-95 wait in __syncthreads at ",
                     line(kDivergent), "threads 32-63,96-127 wait", line(kDivergent + 2)});
    }

    TEST_CASE("simt: shuffles of a wrong width, with a wrong mask, from a wrong lane") {
        std::vector<int> out(64);
        for (int width : {0, 3, 33, 64, -1})
            check_fault([&] { RG_LAUNCH(width_kernel, 1, 32, 0, nullptr, out.data(), width); },
                        {"width_kernel: block (0,0,0): thread 0: ", cat("width ", width, " is not"), line(kWidth)});
        check_fault([&] { RG_LAUNCH(mask_kernel, 1, 32, 0, nullptr, out.data(), 0xfffffeffu, 0); },
                    {"thread 8: __shfl_sync: mask 0xfffffeff lacks the calling lane", line(kMask)});
        check_fault([&] { RG_LAUNCH(mask_kernel, 1, 16, 0, nullptr, out.data(), 0xffffu, 20); },
                    {"thread 0: __shfl_sync: reads lane 20, which is not in mask 0xffff", line(kMask)});
        check_fault([&] { RG_LAUNCH(mask_kernel, 1, 40, 0, nullptr, out.data(), kAllLanes, 0); },
                    {"thread 32: __shfl_sync: lane 8 of mask 0xffffffff is beyond the end", line(kMask)});
    }

    TEST_CASE("simt: lanes that do not come to a meeting") {
        std::vector<int> out(64);
        check_fault(
            [&] { RG_LAUNCH(lane_left_kernel, 1, 32, 0, nullptr, out.data()); },
            {"lane_left_kernel: ", "thread 9: returned, while thread 0 waits for it in __any_sync", line(kLaneLeft)});
        simt::settings().order = simt::Order::reverse;
        check_fault([&] { RG_LAUNCH(lane_left_kernel, 1, 32, 0, nullptr, out.data()); },
                    {"thread 9: returned, while thread 10 waits for it", line(kLaneLeft)});
        simt::settings().order = simt::Order::forward;
        check_fault([&] { RG_LAUNCH(lane_elsewhere_kernel, 1, 32, 0, nullptr, out.data()); },
                    {"threads 0-8,10-31 wait in __any_sync", line(kLaneElsewhere), "threads 9 wait in __syncthreads"});
        check_fault(
            [&] { simt::run_in_every_order([&] { RG_LAUNCH(lane_left_kernel, 1, 32, 0, nullptr, out.data()); }, out); },
            {"lane_left_kernel: ", "(threads ran forward)"});
        check_fault([&] { RG_LAUNCH(different_collectives_kernel, 1, 32, 0, nullptr, out.data()); },
                    {"thread 31: __all_sync meets __any_sync of thread 0 at ", line(kDifferent)});
    }

    TEST_CASE("simt: launches that no GPU takes") {
        float count = 0;
        check_fault([&] { RG_LAUNCH(count_kernel, 1, 1025, 0, nullptr, &count); }, {"count_kernel: ", "block of 1025"});
        check_fault([&] { RG_LAUNCH(count_kernel, 0, 32, 0, nullptr, &count); }, {"count_kernel: ", "grid of 0"});
        check_fault([&] { RG_LAUNCH(count_kernel, 1, 32, 300 << 10, nullptr, &count); },
                    {"count_kernel: 307200 bytes of dynamic"});
        check_fault([&] { RG_LAUNCH(large_kernel, 1, 32, 0, nullptr); },
                    {"static shared memory with tile", "at most 49152", line(kLarge)});
    }

    TEST_CASE("simt: after a fault the stacks are unwound, and the next launch is as ever") {
        std::vector<int> alive(96);
        check_fault([&] { RG_LAUNCH(unwound_kernel, 2, 96, 0, nullptr, alive.data()); }, {"thread 40: "});
        CHECK(alive == std::vector<int>(96, 0));
        float count = 0;
        RG_LAUNCH(count_kernel, 2, 96, 0, nullptr, &count);
        CHECK(count == 96);
    }
}
} // namespace rg::RG_GPU
