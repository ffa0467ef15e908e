// bench_allreduce measures time and bus bandwidth of the all-reduce algorithms and of the MPI library's own.
//
//     mpiexec -n 2 ./bench_allreduce
//
// For each size the algorithms take turns, so that other load disturbs all of them alike. A barrier that yields the
// core precedes each call. The time of a call is that of its slowest rank. The table has the median and the best of all
// calls. Each rank writes its vector before each call, as a training step does. Otherwise a repeated sum of the same
// values would find data in the cache. "ring" and "halving" use messages between all ranks. "shared" sums an ordinary
// vector through the window, and "shared, no copy" a vector in Group::allocate_shared(). "shared, bf16" does the same,
// but sends its sums between nodes in bf16. All three need the same number of ranks on every node.
//
// Bus bandwidth = 2 (n-1)/n * bytes / median. It is the traffic per link, comparable between numbers of ranks. Each
// algorithm is checked once per size, with values that differ by rank and index. Without MPI there is nothing to
// measure.
#define MPICH_SKIP_MPICXX 1
#define OMPI_SKIP_MPICXX 1

#include "core/clock.h"
#include "core/options.h"
#include "par/session.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#if RG_HAVE_MPI
#include <mpi.h>
#endif

namespace {

using rg::par::Algorithm;
using rg::par::Group;

constexpr size_t kCounts[] = {256, 1024, 16384, 131072, 676714, 4194304}; // floats; cifar_net has about 676714
struct Method {
    const char* name;
    std::optional<Algorithm> algorithm; // none: MPI_Allreduce
    bool in_memory = false;             // true: the vector is in Group::allocate_shared()
    rg::par::Wire wire = rg::par::Wire::full;
};
constexpr Method kMethods[] = {{"MPI_Allreduce", {}},
                               {"ring", Algorithm::ring},
                               {"halving", Algorithm::halving},
                               {"shared", Algorithm::shared},
                               {"shared, no copy", Algorithm::shared, true},
                               {"shared, bf16", Algorithm::shared, true, rg::par::Wire::bf16}};
constexpr size_t kMethodsWithoutShared = 3;
constexpr int kWarmUp = 6; // MPICH changes its algorithm after five calls
constexpr double kSecondsPerSize = 2.5;

/// Returns integers whose sum over up to 256 ranks is below 2^24, so that every order of addition gives the same float.
float value_of(size_t i, int rank) { return float((i * 31 + 7) % 4093 * size_t(rank + 1) % 65521); }

void sum(Group& group, std::span<float> values, const Method& method) {
    if (method.algorithm) return group.allreduce_sum(values, "benchmark", *method.algorithm, method.wire);
#if RG_HAVE_MPI
    MPI_Allreduce(MPI_IN_PLACE, values.data(), int(values.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
#endif
}

void check_sums(Group& group, std::span<float> values, const Method& method) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = value_of(i, group.rank());
    sum(group, values, method);
    const float error = method.wire == rg::par::Wire::bf16 ? float(group.size()) * 0x1p-8f : 0; // half a unit per rank
    for (size_t i = 0; i < values.size(); ++i) {
        float expected = 0;
        for (int r = 0; r < group.size(); ++r) expected += value_of(i, r);
        RG_CHECK(std::abs(values[i] - expected) <= error * expected, "bench_allreduce: expected ", expected,
                 " at element ", i, " of ", values.size(), ", got ", values[i], " from ", method.name);
    }
}

double time_call(Group& group, std::span<float> values, const Method& method) {
    std::fill(values.begin(), values.end(), 1.0f);
    group.barrier("before a call");
    const double begin = rg::seconds_now();
    sum(group, values, method);
    return rg::seconds_now() - begin;
}

/// Returns the time of the slowest rank for each call, in ascending order.
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

void measure(Group& group, std::span<const Method> methods, std::span<float> memory, size_t count, int iterations) {
    std::vector<float> ordinary(count);
    const auto vector_for = [&](const Method& method) {
        return method.in_memory ? memory.first(count) : std::span(ordinary);
    };
    for (const Method& method : methods) {
        check_sums(group, vector_for(method), method);
        for (int i = 0; i < kWarmUp; ++i) time_call(group, vector_for(method), method);
    }
    std::vector<std::vector<double>> times(methods.size());
    const double begin = rg::seconds_now();
    for (int i = 0; i < iterations; ++i) {
        for (size_t k = 0; k < methods.size(); ++k)
            times[k].push_back(time_call(group, vector_for(methods[k]), methods[k]));
        if (!group.all(rg::seconds_now() - begin < kSecondsPerSize, "time left")) break;
    }
    const double n = group.size(), bytes = double(count * sizeof(float));
    double yardstick = 0;
    for (size_t k = 0; k < methods.size(); ++k) {
        const std::vector<double> worst = slowest(group, times[k]);
        const double median = worst[worst.size() / 2];
        if (k == 0) yardstick = median;
        if (group.rank() == 0)
            std::printf("%10zu  %-15s %12.1f %12.1f %10.3f %10.4f %7zu\n", count * sizeof(float), methods[k].name,
                        median * 1e6, worst.front() * 1e6, 2 * (n - 1) / n * bytes / median * 1e-9, median / yardstick,
                        worst.size());
    }
    std::fflush(stdout);
}

int run(Group& group, int argc, char** argv) {
    int64_t iterations = 200;
    rg::Options options("bench_allreduce", "measures the all-reduce algorithms over the ranks of mpiexec");
    options.add("iterations", &iterations, "most calls per size and algorithm; a size ends after 2.5 s").range(1, 1e6);
    if (!options.parse(argc, argv)) {
        if (group.rank() == 0) std::fputs(options.help_or_version().c_str(), stdout);
        return 0;
    }
    RG_CHECK(group.size() > 1, "bench_allreduce: expected at least two ranks, got one; start it with mpiexec -n 2");
    const bool shared = !group.link().node().ranks.empty();
    const std::span<const Method> methods =
        std::span(kMethods).first(shared ? std::size(kMethods) : kMethodsWithoutShared);
    const size_t longest = *std::max_element(std::begin(kCounts), std::end(kCounts)) * sizeof(float);
    const std::span<std::byte> bytes = group.allocate_shared(longest, "benchmark");
    const std::span<float> memory(reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float));
    if (group.rank() == 0)
        std::printf("allreduce of float32 over %d ranks, %d on this node\n%10s  %-15s %12s %12s %10s %10s %7s\n",
                    group.size(), group.local_size(), "bytes", "algorithm", "median us", "best us", "bus GB/s",
                    "of MPI's", "calls");
    for (const size_t count : kCounts) measure(group, methods, memory, count, int(iterations));
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    return rg::par::run_ranks_main(argc, argv, [&](Group& group) { return run(group, argc, argv); });
}
