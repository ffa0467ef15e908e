// bench_conv measures convolutions (forward, dgrad, wgrad) and compares them with the peak rate of the CPU.
//
// Two probes run before and after every round on the same threads, since a shared machine changes its clock rate each
// second. `peak` multiplies and adds in registers only, which no direct convolution can reach. `tile` is the register
// tile of the direct convolution with all operands in the L1 cache. It separates the cost of loads from the cost of the
// outer loops. The ratios are medians over the rounds. With fp32-strict, values above 1 are noise; the other kernels,
// such as Winograd or AMX, can exceed 1.
#include "ringgrad/core/context.h"
#include "ringgrad/core/cpu/cores.h"
#include "ringgrad/core/cpu/isa.h"
#include "ringgrad/core/cpu/thread_pool.h"
#include "ringgrad/core/ops.h"
#include "ringgrad/core/options.h"
#include "ringgrad/core/rng.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <vector>

using namespace rg;

namespace {

struct Settings {
    int64_t batch = 256, threads = 0, rounds = 15;
    std::string precision = "fp32-strict";
};

/// A convolution with stride 1, padded so that the result is as large as the image.
struct Case {
    int64_t size, c, k, r;
};
constexpr Case kCases[] = {{32, 3, 32, 3},  {32, 32, 32, 3},  {16, 32, 64, 3}, {16, 64, 64, 3},
                           {8, 64, 128, 3}, {8, 128, 128, 3}, {16, 32, 32, 5}, {16, 64, 64, 1},
                           {32, 8, 8, 3},   {16, 11, 22, 3},  {28, 20, 20, 3}};

/// Sixteen independent chains of multiply-adds, which are more than enough for two units with a latency of four cycles.
constexpr int64_t kSteps = 2000000, kChains = 16;
typedef float Vector4 __attribute__((vector_size(16)));
typedef float Vector8 __attribute__((vector_size(32)));
typedef float Vector16 __attribute__((vector_size(64)));
template <class Vector>
inline __attribute__((always_inline)) float chains() {
    Vector sums[kChains];
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) sums[i] = float(i) - Vector{};
    const Vector factor = 0.9999f - Vector{}, term = 0.1f - Vector{};
    for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 16
        for (int i = 0; i < kChains; ++i) sums[i] = sums[i] * factor + term;
    }
    float total = 0;
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) total += sums[i][i % 4];
    return total;
}
#if defined(__x86_64__)
__attribute__((target("avx512f"))) float chains_avx512() { return chains<Vector16>(); }
__attribute__((target("avx2,fma"))) float chains_avx2() { return chains<Vector8>(); }
#endif

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Runs f with `flops` operations on each thread of the pool, and returns GFLOP/s.
template <class F>
double rate(ThreadPool& pool, double flops, F&& f) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(pool.size(), f);
    return flops * pool.size() / seconds_since(start) * 1e-9;
}

double peak(ThreadPool& pool) {
    float (*probe)() = chains<Vector4>;
    int64_t width = 4;
#if defined(__x86_64__)
    if (cpu::isa().width == 16) probe = chains_avx512, width = 16;
    if (cpu::isa().width == 8) probe = chains_avx2, width = 8;
#endif
    std::vector<float> results(static_cast<size_t>(pool.size())); // keeps the compiler from removing the work
    const double gflops =
        rate(pool, 2.0 * kSteps * kChains * double(width), [&](int64_t thread) { results[size_t(thread)] = probe(); });
    volatile float sink = 0;
    for (float result : results) sink = sink + result;
    return gflops;
}

double tile(ThreadPool& pool) {
    constexpr int64_t kTaps = 256, kPixels = 8, kCalls = 15000;
    const int64_t k = 2 * cpu::isa().width;
    const int64_t run_start = 0;
    const cpu::ConvImage image{.p = 1,
                               .q = kPixels,
                               .k = k,
                               .runs = 1,
                               .taps = kTaps,
                               .run_start = &run_start,
                               .row = kPixels * kTaps,
                               .step = kTaps,
                               .y_row = kPixels * k,
                               .y_step = k};
    // Vectors begin on cache lines, as in a convolution.
    const Tensor x = Tensor::constant({kPixels, kTaps}, 0.5), filters = Tensor::constant({kTaps, k}, 0.25);
    const Tensor bias = Tensor::zeros({k}), y = Tensor::zeros({pool.size(), kPixels, k});
    return rate(pool, 2.0 * kCalls * kPixels * kTaps * double(k), [&](int64_t thread) {
        for (int64_t call = 0; call < kCalls; ++call)
            cpu::isa().conv->forward(image, x.data<float>(), filters.data<float>(),
                                     {y.data<float>() + thread * kPixels * k, bias.data<float>()});
    });
}

Tensor random_tensor(const Shape& shape, DType type) {
    const Tensor values = Tensor::empty(shape);
    Rng random(0, Purpose::synthetic);
    for (float& v : values.span<float>()) v = random.normal();
    if (type == DType::f32) return values;
    const Tensor rounded = Tensor::empty(shape, type);
    run(op::cast, {values}, CastOp{type}, {rounded});
    return rounded;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

void bench(const Settings& s, ThreadPool& pool, const Case& c) {
    const DType type = s.precision == "bf16" ? DType::bf16 : DType::f32;
    const Tensor x = random_tensor({s.batch, c.size, c.size, c.c}, type),
                 w = random_tensor({c.k, c.r, c.r, c.c}, DType::f32);
    const Tensor bias = random_tensor({c.k}, DType::f32), dy = random_tensor({s.batch, c.size, c.size, c.k}, type);
    const Conv conv{.stride = 1, .pad = c.r / 2};
    const double flops = 2.0 * double(dy.numel() * c.r * c.r * c.c);

    std::array<std::vector<double>, 3> gflops, of_peak, of_tile;
    const auto measure = [&](std::array<double, 3>& seconds) {
        const auto timed = [&](auto&& f) {
            const auto start = std::chrono::steady_clock::now();
            f();
            return seconds_since(start);
        };
        seconds[0] = timed([&] { conv2d(x, w, bias, conv); });
        seconds[1] = timed([&] { run(op::conv2d_grad, {dy, x, w}, Conv2dGradOp{.conv = conv, .filters = false}); });
        seconds[2] = timed([&] { run(op::conv2d_grad, {dy, x, w}, Conv2dGradOp{.conv = conv, .data = false}); });
    };
    std::array<double, 3> seconds;
    measure(seconds); // a warm-up, which allocates memory and starts threads
    for (int64_t round = 0; round < s.rounds; ++round) {
        const double peak_before = peak(pool), tile_before = tile(pool);
        measure(seconds);
        const double most = (peak_before + peak(pool)) / 2, tiles = (tile_before + tile(pool)) / 2;
        for (size_t i = 0; i < 3; ++i) {
            gflops[i].push_back(flops / seconds[i] * 1e-9);
            of_peak[i].push_back(gflops[i].back() / most);
            of_tile[i].push_back(gflops[i].back() / tiles);
        }
    }
    std::printf("image=%lldx%lld channels=%lld filters=%lld size=%lldx%lld precision=%s isa=%s threads=%d",
                static_cast<long long>(c.size), static_cast<long long>(c.size), static_cast<long long>(c.c),
                static_cast<long long>(c.k), static_cast<long long>(c.r), static_cast<long long>(c.r),
                s.precision.c_str(), cpu::isa().name, pool.size());
    constexpr const char* kNames[] = {"forward", "dgrad", "wgrad"};
    for (size_t i = 0; i < 3; ++i)
        std::printf(" %s_gflops=%.0f %s_of_peak=%.2f %s_of_tile=%.2f", kNames[i], median(gflops[i]), kNames[i],
                    median(of_peak[i]), kNames[i], median(of_tile[i]));
    std::printf("\n");
}

int run_program(int argc, const char* const* argv) {
    Settings s;
    Options options("bench_conv", "measures convolutions against the CPU's rate of multiply-adds");
    options.add("batch", &s.batch, "images per mini-batch").at_least(1);
    options.add("threads", &s.threads, "number of threads; 0: one per core").range(0, 1024);
    options.add("rounds", &s.rounds, "number of measurements, of which the median is printed").at_least(1);
    options.add("precision", &s.precision, "number format; fp32-strict: only plain multiply-adds")
        .one_of({"fp32", "fp32-strict", "bf16"});
    if (!options.parse(argc, argv)) {
        std::cout << options.answer();
        return 0;
    }
    ThreadPool pool(s.threads ? int(s.threads) : available_cores());
    Context context{.threads = &pool, .strict_fp32 = s.precision == "fp32-strict"};
    const ContextScope scope(context);
    std::printf("peak_gflops=%.0f tile_gflops=%.0f\n", peak(pool), tile(pool));
    for (const Case& c : kCases) bench(s, pool, c);
    return 0;
}

} // namespace

int main(int argc, char** argv) { return run_main(argc, argv, run_program); }
