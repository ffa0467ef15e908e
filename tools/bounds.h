// Measures the peak rates of this machine, and derives from them the least time of each convolution of a profile.
// tools/bench/README.md says how to read the table.
#pragma once

#include "core/cpu/isa.h"
#include "core/cpu/thread_pool.h"
#include "core/device.h"
#include "core/profile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <vector>

namespace rg {

#if defined(__clang__)
#define RG_FAST
#else
#define RG_FAST __attribute__((optimize("O3", "fp-contract=fast")))
#endif

/// Defines two functions for vectors of `lanes` floats. multiply_adds() computes `rounds` times `chains` multiply-adds
/// that do not wait for each other. read() reads `count` values, a multiple of 8 * lanes, `times` times. The compiler
/// must assume that the assembler code, which is empty, reads and writes the variables.
#define RG_PEAK_KERNELS(lanes, chains, target)                                                                         \
    typedef float Vec##lanes __attribute__((vector_size(4 * lanes), aligned(4), may_alias));                           \
    target RG_FAST inline void multiply_adds_##lanes(int64_t rounds) {                                                 \
        Vec##lanes sums[chains] = {}, factor = {};                                                                     \
        asm volatile("" : "+m"(sums), "+m"(factor));                                                                   \
        for (; rounds > 0; --rounds) {                                                                                 \
            _Pragma("GCC unroll 32") for (int i = 0; i < chains; ++i) sums[i] += sums[i] * factor;                     \
        }                                                                                                              \
        asm volatile("" : "+m"(sums));                                                                                 \
    }                                                                                                                  \
    target RG_FAST inline void read_##lanes(const float* x, int64_t count, int64_t times) {                            \
        Vec##lanes sums[8] = {};                                                                                       \
        for (; times > 0; --times)                                                                                     \
            for (int64_t j = 0; j < count; j += 8 * lanes) {                                                           \
                _Pragma("GCC unroll 8") for (int i = 0; i < 8; ++i) sums[i] +=                                         \
                    *(const Vec##lanes*)(x + j + i * lanes);                                                           \
            }                                                                                                          \
        asm volatile("" : "+m"(sums));                                                                                 \
    }                                                                                                                  \
    constexpr PeakKernels kPeaks##lanes{lanes * chains, multiply_adds_##lanes, read_##lanes};

struct PeakKernels {
    int64_t per_round;
    void (*multiply_adds)(int64_t rounds);
    void (*read)(const float* x, int64_t count, int64_t times);
};
#if defined(__x86_64__)
RG_PEAK_KERNELS(4, 12, )
RG_PEAK_KERNELS(8, 12, __attribute__((target("avx2,fma"))))
RG_PEAK_KERNELS(16, 24, __attribute__((target("avx512f"))))
#else
RG_PEAK_KERNELS(4, 24, )
constexpr PeakKernels kPeaks8 = kPeaks4, kPeaks16 = kPeaks4;
#endif

/// Bytes of the array of each thread: in the first-level, second-level and last-level cache, and in memory. Data of up
/// to kFits times the bytes count as data of that level.
constexpr double kLevels[] = {16 << 10, 256 << 10, 4 << 20, 256 << 20}, kFits = 4;

/// Rates of all threads together, per second.
struct Peaks {
    double multiply_adds;     // of f32
    double bf16_products = 0; // of the tile kernel, with data in the first-level cache
    double bytes[4] = {};     // bytes read at each level

    /// Returns the time of reading `amount` bytes that belong to data of `size` bytes.
    double read(double amount, double size) const {
        int level = 0;
        while (level < 3 && size > kFits * kLevels[level]) ++level;
        return amount / bytes[level];
    }
};

/// Measures the rates. Each is the best of 10 or more trials, in which all threads work at once.
inline Peaks measure_peaks(ThreadPool& pool) {
    const int64_t threads = pool.size(), all = 64 << 20, share = all / threads / 128 * 128, rounds = 1 << 17;
    const int width = cpu::isa().width;
    const PeakKernels kernels = width == 16 ? kPeaks16 : width == 8 ? kPeaks8 : kPeaks4;
    std::vector<float> values(size_t(all), 1.0f);
    const auto rate = [&](int64_t work, auto f) {
        double best = 0;
        const double start = seconds_now();
        for (int trial = 0; trial < 10 || seconds_now() - start < 0.3; ++trial)
            best = std::max(best, double(threads * work) / wall_seconds([&] { pool.run(threads, f); }));
        return best;
    };
    Peaks peaks{rate(rounds * kernels.per_round, [&](int64_t) { kernels.multiply_adds(rounds); })};
    for (int i = 0; i < 4; ++i) {
        const int64_t count = std::min(share, int64_t(kLevels[i]) / 4), times = std::max<int64_t>(1, all / count / 4);
        peaks.bytes[i] =
            rate(4 * count * times, [&](int64_t task) { kernels.read(values.data() + task * share, count, times); });
    }
    if (const cpu::TileKernels* const tiles = cpu::isa().tiles) {
        const std::vector<uint16_t> filters(32 * 16 * cpu::kTileRun); // and the pixels: all of them are zero
        const std::vector<int32_t> from(2), to(2 * size_t(tiles->pixels), -1);
        cpu::TileConv g{};
        g.k = g.k_end = 32, g.r = 1, g.runs = 16, g.pairs = 16 * g.runs, g.tiles = 2, g.from = from.data(),
        g.to = to.data();
        peaks.bf16_products = rate(1024 * int64_t(filters.size() * to.size()), [&](int64_t) {
            for (int i = 0; i < 1024; ++i)
                tiles->forward(g, filters.data(), filters.data(), {nullptr, values.data()}, nullptr);
        });
    }
    return peaks;
}

/// Returns the size of the filters in the form that is read for each image, or each few images.
inline double filter_bytes(const Profile::Note& n) {
    const int64_t bytes = n.method == "tiles" ? size_of(n.images) : n.method == "Winograd" ? 4 * 36 / 9 : 4;
    return double(n.w.numel() * bytes);
}

/// Returns the parts of the least time of a convolution, or of one of its gradients: seconds for products, for
/// Winograd's transforms, and to read filters and images. `kept` is the sum of filter_bytes() of all convolutions, if
/// they are kept from step to step: each step begins to read them at the level in which all of them fit. It is 0 if
/// each convolution prepares its filters.
inline std::array<double, 4> least_parts(const Profile::Note& n, const Peaks& peaks, double kept) {
    const bool tiles = n.method == "tiles", dw = n.op == "conv2d_grad: dw", dx = n.op == "conv2d_grad: dx";
    double products = double(n.y.numel() * n.w[1] * n.w[2] * n.w[3]) * (tiles && n.images == DType::f32 ? 3 : 1);
    double operations = 0, moved = 0; // of the transforms: vector operations, and values that are loaded or stored
    double times = double(n.x[0]);    // that the filters are read, or that results are added to their gradient
    if (n.method == "Winograd") {     // winograd_isa.cpp has the transforms; 32 tiles, or for dw 64, share the filters
        const Shape &from = dx ? n.y : n.x, &to = dx ? n.x : n.y;
        const double count = double(to[0] * ((to[1] + 3) / 4) * ((to[2] + 3) / 4));
        products = count * 36 * double(n.w[0] * n.w[3]);
        operations = count * double(168 * from[3] + (dw ? 100 : 152) * to[3]);
        moved = count * double((36 + 36) * from[3] + (36 + 16) * to[3]);
        times = std::ceil(count / (dw ? 64 : 32));
    } else if (tiles || n.method == "dense") {
        times = std::ceil(times / (tiles ? 4 : 32));
    }
    const double filters = filter_bytes(n), images = double((n.x.numel() + n.y.numel()) * size_of(n.images));
    return {products / (tiles ? peaks.bf16_products : peaks.multiply_adds),
            std::max(operations / peaks.multiply_adds, 4 * moved / peaks.bytes[0]),
            (dw ? 2 : 1) * (peaks.read(filters, std::max(kept, filters)) + peaks.read((times - 1) * filters, filters)),
            peaks.read(images, images)};
}

/// Prints the peak rates, and a line for each kind of convolution in a profile of `steps` steps. `keep` says that the
/// step keeps its filters, prepared for the convolutions.
inline void print_bounds(const Profile& profile, double steps, bool keep, const Peaks& peaks) {
    std::printf("\npeaks: %.1f G multiply-adds/s of f32, %.1f of bf16; GB/s read from first-level cache %.0f, "
                "second-level %.0f, last-level %.0f, memory %.0f\nop          calls        ms  least ms  ratio  "
                "products transforms   filters    images  method           x, w, y\n",
                peaks.multiply_adds * 1e-9, peaks.bf16_products * 1e-9, peaks.bytes[0] * 1e-9, peaks.bytes[1] * 1e-9,
                peaks.bytes[2] * 1e-9, peaks.bytes[3] * 1e-9);
    double kept = 0, all_ms = 0, all_least = 0;
    for (const auto& [notes, totals] : profile.noted())
        for (const Profile::Note& n : notes) kept += keep ? filter_bytes(n) * double(totals.calls) / steps : 0;
    for (const auto& [notes, totals] : profile.noted()) {
        const Profile::Note &n = notes.front(), &last = notes.back();
        const double calls = double(totals.calls) / steps, ms = 1e3 * totals.seconds / steps;
        std::array<double, 4> sums{}; // ms
        for (const Profile::Note& note : notes)
            for (size_t i = 0; i < 4; ++i) sums[i] += 1e3 * calls * least_parts(note, peaks, kept)[i];
        const double least = std::max(sums[0] + sums[1], sums[2] + sums[3]); // reads overlap with arithmetic
        all_ms += ms, all_least += least;
        std::printf("%-11s %5.0f %9.3f %9.3f %4.0f %% %9.3f %10.3f %9.3f %9.3f  %-16s %s %s %s",
                    n.op.substr(0, n.op.find(':')).c_str(), calls, ms, least, 100 * least / ms, sums[0], sums[1],
                    sums[2], sums[3], (n.method + (last.method == n.method ? "" : ", " + last.method)).c_str(),
                    n.x.str().c_str(), n.w.str().c_str(), n.y.str().c_str());
        const double most = std::max({sums[1], sums[2], sums[3]});
        const char* const name = most == sums[1] ? "transforms" : most == sums[2] ? "filters" : "images";
        if (least < 0.7 * ms) std::printf("  (%s: %.0f %%)", name, 100 * most / ms);
        std::printf("\n");
    }
    std::printf("%-11s %5s %9.3f %9.3f %4.0f %%\n", "all", "", all_ms, all_least, 100 * all_least / all_ms);
}

} // namespace rg
