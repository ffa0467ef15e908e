// bench_allreduce: time and bus bandwidth of the allreduce algorithms beside the MPI library's own.
//
//     mpiexec -n 2 ./bench_allreduce [--iterations N]
//
// The algorithms take turns within a size, so that a busy neighbour disturbs all alike. A yielding barrier comes before
// each call; the time of a call is that of its slowest rank; the table gives median and best over the calls.
// Bus bandwidth = 2 (n-1)/n * bytes / median: what each link carries, comparable between numbers of ranks.
// Each size is checked once, on data that is unique per rank and index. Without MPI there is nothing to measure.

#include "par/session.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

using rg::par::Algorithm;
using rg::par::Group;

constexpr size_t kCounts[] = {256, 1024, 16384, 131072, 676714, 4194304}; // floats; 676,714: the default network
constexpr Algorithm kAlgorithms[] = {Algorithm::mpi, Algorithm::ring, Algorithm::small};
constexpr const char* kNames[] = {"MPI_Allreduce", "ring", "small-message"};
constexpr size_t kKinds = std::size(kAlgorithms);
constexpr int kWarmUp = 6; // MPICH changes its algorithm after five calls
constexpr double kSecondsPerSize = 2.5;
constexpr const char* kUsage =
    "usage: mpiexec -n RANKS bench_allreduce [--iterations N]\n"
    "  --iterations N   calls per size and algorithm, at most (default 200; each size stops after 2.5 seconds)\n"
    "  --help           this text\n";

double now() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

/// Whole numbers below 2^24 in sum, so that every order of addition gives the same float.
float value_of(size_t i, int rank) { return float((i * 31 + 7) % 4093 * size_t(rank + 1) % 65521); }

void check_sums(Group& group, std::vector<float>& values, size_t kind) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = value_of(i, group.rank());
    group.allreduce_sum(values, "check", kAlgorithms[kind]);
    for (size_t i = 0; i < values.size(); ++i) {
        float sum = 0;
        for (int r = 0; r < group.size(); ++r) sum += value_of(i, r);
        RG_CHECK(values[i] == sum, "bench_allreduce: expected ", sum, " at element ", i, " of ", values.size(),
                 ", got ", values[i], " from ", kNames[kind]);
    }
    std::fill(values.begin(), values.end(), 0.0f); // sums of zeros stay finite
}

double time_call(Group& group, std::vector<float>& values, size_t kind) {
    group.barrier("before a call");
    const double begin = now();
    group.allreduce_sum(values, "timed", kAlgorithms[kind]);
    return now() - begin;
}

/// Per call, the time of the slowest rank; sorted.
std::vector<double> slowest(Group& group, const std::vector<double>& times) {
    const std::string_view bytes(reinterpret_cast<const char*>(times.data()), times.size() * sizeof(double));
    std::vector<double> worst(times.size(), 0.0);
    for (const std::string& part : group.allgather(bytes, "times"))
        for (size_t i = 0; i < worst.size(); ++i) {
            double t = 0;
            std::memcpy(&t, part.data() + i * sizeof t, sizeof t);
            worst[i] = std::max(worst[i], t);
        }
    std::sort(worst.begin(), worst.end());
    return worst;
}

void measure(Group& group, size_t count, int iterations) {
    std::vector<float> values(count);
    for (size_t kind = 0; kind < kKinds; ++kind) {
        check_sums(group, values, kind);
        for (int i = 0; i < kWarmUp; ++i) time_call(group, values, kind);
    }
    std::vector<double> times[kKinds];
    const double begin = now();
    for (int i = 0; i < iterations; ++i) {
        for (size_t kind = 0; kind < kKinds; ++kind) times[kind].push_back(time_call(group, values, kind));
        if (!group.all(now() - begin < kSecondsPerSize, "time left")) break;
    }
    const double n = group.size(), bytes = double(count * sizeof(float));
    double yardstick = 0;
    for (size_t kind = 0; kind < kKinds; ++kind) {
        const std::vector<double> worst = slowest(group, times[kind]);
        const double median = worst[worst.size() / 2];
        if (kind == 0) yardstick = median;
        if (group.rank() == 0)
            std::printf("%10zu  %-14s %12.1f %12.1f %10.3f %10.4f %7zu\n", count * sizeof(float), kNames[kind],
                        median * 1e6, worst.front() * 1e6, 2 * (n - 1) / n * bytes / median * 1e-9, median / yardstick,
                        worst.size());
    }
    std::fflush(stdout);
}

int run(Group& group, int argc, char** argv) {
    int iterations = 200;
    for (int i = 1; i < argc; ++i) {
        if (!std::strcmp(argv[i], "--help")) {
            if (group.rank() == 0) std::fputs(kUsage, stdout);
            return 0;
        }
        RG_CHECK(!std::strcmp(argv[i], "--iterations"), "bench_allreduce: unknown option '", argv[i], "' (see --help)");
        iterations = i + 1 < argc ? std::atoi(argv[++i]) : 0;
        RG_CHECK(iterations >= 1, "bench_allreduce: --iterations expects a number above zero");
    }
    RG_CHECK(group.size() > 1, "bench_allreduce: expected at least two ranks, got one; start it with mpiexec -n 2");
    if (group.rank() == 0) {
        std::printf("allreduce of float32 over %d ranks, %d on this node\n", group.size(), group.local_size());
        std::printf("%10s  %-14s %12s %12s %10s %10s %7s\n", "bytes", "algorithm", "median us", "best us", "bus GB/s",
                    "of MPI's", "calls");
    }
    for (const size_t count : kCounts) measure(group, count, iterations);
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    return rg::par::run_ranks_main(argc, argv, [&](Group& group) { return run(group, argc, argv); });
}
