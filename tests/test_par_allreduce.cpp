// Tests the all-reduce over ranks that are threads: 1 to 9 ranks, lengths around the number of ranks, and segments so
// short that small vectors take the pipelined path. Values differ by rank and index, so a permuted, doubled or missing
// chunk changes the result. The threads of the ranks store results, and the main thread checks them.

#include "ringgrad/core/bf16.h"
#include "ringgrad/core/rng.h"
#include "ringgrad/par/group.h"
#include "ringgrad/tests/thread_link.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <doctest/doctest.h>

using namespace rg;
using par::Algorithm;
using par::Group;
using par::Link;

namespace {

/// Returns an integer, so that a sum of nine is exact in float in any order.
template <class T>
T value_of(size_t i, int rank) {
    return T((i * 31 + 7) % 1009 * size_t(rank + 1) + size_t(rank));
}

template <class T>
std::vector<std::vector<T>> sum_over_threads(int n, size_t count, size_t segment, Algorithm algorithm) {
    std::vector<std::vector<T>> results(static_cast<size_t>(n));
    par::run_threads(n, [&](Link& link) {
        Group group(link, segment);
        std::vector<T> values(count + 2, T(-5)); // with a guard value on each side
        const std::span<T> inner(values.data() + 1, count);
        for (int repeat = 0; repeat < 2; ++repeat) { // the second run uses the cached plan
            for (size_t i = 0; i < count; ++i) inner[i] = value_of<T>(i, link.rank());
            group.allreduce_sum(inner, "test", algorithm);
        }
        results[size_t(link.rank())] = values;
    });
    return results;
}

template <class T>
void check_sums(Algorithm algorithm) {
    for (int n = 1; n <= 9; ++n)
        for (const size_t count : {size_t(0), size_t(1), size_t(n - 1), size_t(n), size_t(n + 1), size_t(1000)})
            for (const size_t segment : {size_t(1), size_t(60), size_t(256), size_t(1) << 20}) {
                if (segment == 1 && count > 100) continue; // one element at a time is too slow for long vectors
                if (algorithm == Algorithm::small && segment != 60) continue; // this algorithm has no segments
                CAPTURE(n);
                CAPTURE(count);
                CAPTURE(segment);
                std::vector<T> expected(count + 2, T(-5));
                for (size_t i = 0; i < count; ++i) {
                    expected[i + 1] = 0;
                    for (int r = 0; r < n; ++r) expected[i + 1] += value_of<T>(i, r);
                }
                for (const std::vector<T>& result : sum_over_threads<T>(n, count, segment, algorithm))
                    CHECK(result == expected);
            }
}

std::vector<std::vector<float>> random_sums(int n, size_t count, Algorithm algorithm) {
    std::vector<std::vector<float>> results(static_cast<size_t>(n));
    par::run_threads(n, [&](Link& link) {
        Group group(link, 512);
        Rng rng(11, Purpose::test, 0, uint64_t(link.rank()));
        std::vector<float> values(count);
        for (float& v : values) v = rng.normal() * std::exp(4 * rng.normal());
        group.allreduce_sum(values, "random", algorithm);
        results[size_t(link.rank())] = values;
    });
    return results;
}

} // namespace

TEST_SUITE("par") {
    TEST_CASE("ring: gives exact sums for 1 to 9 ranks") {
        check_sums<float>(Algorithm::ring);
        check_sums<double>(Algorithm::ring);
    }

    TEST_CASE("small: gives exact sums for 1 to 9 ranks") {
        check_sums<float>(Algorithm::small);
        check_sums<double>(Algorithm::small);
    }

    TEST_CASE("shared: gives exact sums through the window for 1 to 9 ranks") {
        check_sums<float>(Algorithm::shared);
        check_sums<double>(Algorithm::shared);
    }

    TEST_CASE("shared: gives exact sums of any range of the group's memory in place") {
        for (int n = 1; n <= 9; ++n) {
            CAPTURE(n);
            for (int per_node = 1; per_node <= n; ++per_node) { // on nodes of equal size, and on unequal ones
                CAPTURE(per_node);
                const size_t count = 1003;
                std::vector<size_t> wrong(static_cast<size_t>(n), 0);
                par::run_threads(
                    n,
                    [&](Link& link) {
                        Group group(link, 256);
                        std::span<double> memories[2]; // the group must tell them apart
                        for (std::span<double>& memory : memories) {
                            const std::span<std::byte> bytes = group.memory(count * sizeof(double), "test");
                            memory = {reinterpret_cast<double*>(bytes.data()), count};
                            for (const double zero : memory) wrong[size_t(link.rank())] += zero != 0;
                        }
                        for (const std::span<double> memory : memories)
                            for (const size_t begin : {size_t(0), size_t(1), size_t(8), size_t(13), size_t(1000)})
                                for (const size_t length : {size_t(0), size_t(1), size_t(7), size_t(100), count}) {
                                    const size_t end = std::min(count, begin + length);
                                    for (size_t i = 0; i < count; ++i) memory[i] = value_of<double>(i, link.rank());
                                    group.allreduce_sum(memory.subspan(begin, end - begin), "in place");
                                    for (size_t i = 0; i < count; ++i) {
                                        double sum = value_of<double>(i, link.rank());
                                        if (i >= begin && i < end) {
                                            sum = 0;
                                            for (int r = 0; r < n; ++r) sum += value_of<double>(i, r);
                                        }
                                        wrong[size_t(link.rank())] += memory[i] != sum;
                                    }
                                }
                    },
                    per_node);
                CHECK(wrong == std::vector<size_t>(size_t(n), 0));
            }
        }
    }

    TEST_CASE("shared: adds in rank order, for any chunks and any place, on one node or several") {
        const std::pair<int, int> kRanks[] = {{2, 2}, {3, 3}, {4, 4}, {7, 7}, {2, 1}, {3, 1}, {4, 2}, {6, 2}, {9, 3}};
        for (const auto& [ranks, ranks_per_node] : kRanks) {
            const int n = ranks, per_node = ranks_per_node; // lambdas cannot capture a binding
            CAPTURE(n);
            CAPTURE(per_node);
            const size_t count = 40003; // more than a message between nodes
            std::vector<float> expected(count);
            for (int r = 0; r < n; ++r) {
                Rng rng(3, Purpose::test, 0, uint64_t(r));
                for (float& e : expected) e = r == 0 ? rng.normal() : e + rng.normal();
            }
            for (const size_t segment : {size_t(100), size_t(512), size_t(1) << 20})
                for (const bool in_memory : {false, true}) {
                    CAPTURE(segment);
                    CAPTURE(in_memory);
                    std::vector<int> same(size_t(n), 0);
                    par::run_threads(
                        n,
                        [&](Link& link) {
                            Group group(link, segment);
                            std::vector<float> ordinary(count);
                            const std::span<std::byte> memory = group.memory(count * sizeof(float), "test");
                            const std::span<float> values =
                                in_memory ? std::span(reinterpret_cast<float*>(memory.data()), count)
                                          : std::span(ordinary);
                            Rng rng(3, Purpose::test, 0, uint64_t(link.rank()));
                            for (float& v : values) v = rng.normal();
                            group.allreduce_sum(values, "random", Algorithm::shared);
                            same[size_t(link.rank())] =
                                std::memcmp(values.data(), expected.data(), count * sizeof(float)) == 0;
                        },
                        per_node);
                    CHECK(same == std::vector<int>(size_t(n), 1));
                }
        }
    }

    TEST_CASE("shared: bf16 between nodes rounds each node's sums, and all ranks get the same") {
        const int n = 6;
        const size_t count = 9001; // two messages of bf16 between nodes, and one value
        for (const int per_node : {1, 2, 3, 6}) {
            CAPTURE(per_node);
            std::vector<float> expected(count, 0);
            for (int r = 0; r < n; ++r) {
                Rng rng(4, Purpose::test, 0, uint64_t(r));
                for (float& e : expected) {
                    e = r == 0 ? rng.normal() : e + rng.normal();
                    if (r % per_node == per_node - 1 && per_node < n) e = to_float(to_bf16(e));
                }
            }
            std::vector<int> same(size_t(n), 0);
            par::run_threads(
                n,
                [&](Link& link) {
                    Group group(link);
                    const std::span<std::byte> memory = group.memory(count * sizeof(float), "test");
                    const std::span<float> values(reinterpret_cast<float*>(memory.data()), count);
                    Rng rng(4, Purpose::test, 0, uint64_t(link.rank()));
                    for (float& v : values) v = rng.normal();
                    group.allreduce_sum(values, "random", Algorithm::automatic, par::Wire::bf16);
                    same[size_t(link.rank())] = std::ranges::equal(values, expected);
                },
                per_node);
            CHECK(same == std::vector<int>(size_t(n), 1));
        }
        const auto sum = [](Algorithm algorithm, int ranks, int per_node) {
            par::run_threads(
                ranks,
                [&](Link& link) {
                    Group group(link);
                    std::vector<float> values(4);
                    group.allreduce_sum(values, "x", algorithm, par::Wire::bf16);
                },
                per_node);
        };
        CHECK_THROWS_WITH_AS(sum(Algorithm::ring, 4, 2), doctest::Contains("expected algorithm automatic or shared"),
                             Error);
        CHECK_THROWS_WITH_AS(sum(Algorithm::automatic, 3, 2),
                             doctest::Contains("got nodes with different numbers of ranks"), Error);
    }

    TEST_CASE("shared: operations of all kinds can follow each other") {
        const int n = 3;
        std::vector<int> wrong(n, 0);
        par::run_threads(n, [&](Link& link) {
            Group group(link, 64);
            const Algorithm algorithms[] = {Algorithm::shared, Algorithm::ring, Algorithm::small};
            for (size_t i = 0; i < 300; ++i) {
                std::vector<float> values(i % 37);
                for (size_t k = 0; k < values.size(); ++k) values[k] = value_of<float>(k, link.rank());
                group.allreduce_sum(values, "mixed", algorithms[i * i % 7 % 3]);
                for (size_t k = 0; k < values.size(); ++k)
                    wrong[size_t(link.rank())] +=
                        values[k] != value_of<float>(k, 0) + value_of<float>(k, 1) + value_of<float>(k, 2);
                if (i % 5 == 0) group.barrier("between");
                if (i % 11 == 0) wrong[size_t(link.rank())] += group.all(link.rank() != 1, "one says no");
            }
        });
        CHECK(wrong == std::vector<int>(n, 0));
    }

    TEST_CASE("choice: shared within a node; between nodes, doubling for short vectors, ring or shared for long ones") {
        for (const size_t bytes : {size_t(0), size_t(4096), size_t(1) << 24})
            for (int n = 2; n <= 9; ++n) CHECK(par::choose(bytes, n, 1, false) == Algorithm::shared);
        for (const int n : {2, 3, 4, 8, 64, 1000}) {
            CAPTURE(n);
            CHECK(par::choose(64, n, n, false) == Algorithm::small);
            CHECK(par::choose(size_t(1) << 28, n, n, false) == Algorithm::ring);
            // Two ranks need one round, in which both links carry the vector once, as in the chain.
            CHECK(par::choose(size_t(1) << 28, n, n, true) == (n == 2 ? Algorithm::small : Algorithm::shared));
            bool ring = false; // from some length on, the choice is ring
            for (size_t bytes = 64; bytes <= size_t(1) << 28; bytes *= 2) {
                const bool now = par::choose(bytes, n, n, false) == Algorithm::ring;
                CHECK(now >= ring);
                ring = now;
            }
        }
        const par::CostModel cost{1, 0.1, 0.01}; // computed by hand for 4 ranks and 1000 bytes
        CHECK(cost.ring(1000, 4) == doctest::Approx(6 + 150 + 7.5));
        CHECK(cost.chain(1000, 2) == doctest::Approx(2 + 110));
        CHECK(cost.chain(1000, 4) == doctest::Approx(6 + 210));
        CHECK(cost.doubling(1000, 4) == doctest::Approx(2 * 111));
        CHECK(cost.doubling(1000, 6) == doctest::Approx(4 * 111));
    }

    TEST_CASE("allreduce: gives the same bits on all ranks and in every run") {
        for (int n = 2; n <= 9; ++n)
            for (const Algorithm algorithm : {Algorithm::ring, Algorithm::small, Algorithm::shared}) {
                CAPTURE(n);
                const size_t count = 1003;
                const auto results = random_sums(n, count, algorithm), again = random_sums(n, count, algorithm);
                for (const auto& result : results)
                    CHECK(std::memcmp(result.data(), results[0].data(), count * sizeof(float)) == 0);
                CHECK(std::memcmp(again[0].data(), results[0].data(), count * sizeof(float)) == 0);

                double worst = 0;
                std::vector<double> sum(count, 0.0), size(count, 0.0);
                for (int r = 0; r < n; ++r) {
                    Rng rng(11, Purpose::test, 0, uint64_t(r));
                    for (size_t i = 0; i < count; ++i) {
                        const float v = rng.normal() * std::exp(4 * rng.normal());
                        sum[i] += v;
                        size[i] += std::abs(v);
                    }
                }
                for (size_t i = 0; i < count; ++i) worst = std::max(worst, std::abs(results[0][i] - sum[i]) / size[i]);
                CHECK(worst < n * 0x1p-24); // n - 1 roundings by half a unit of a partial sum
            }
    }

    TEST_CASE("allreduce: handles more buffers than plans") {
        const int n = 3;
        std::vector<int> wrong(n, 0);
        par::run_threads(n, [&](Link& link) {
            Group group(link);
            std::vector<std::vector<float>> buffers;
            for (size_t i = 0; i < Group::kPlans + 5; ++i) buffers.emplace_back(8000 + i);
            // The group drops plans and makes them again.
            for (const Algorithm algorithm : {Algorithm::ring, Algorithm::ring, Algorithm::small, Algorithm::automatic})
                for (std::vector<float>& buffer : buffers) {
                    for (size_t i = 0; i < buffer.size(); ++i) buffer[i] = value_of<float>(i, link.rank());
                    group.allreduce_sum(buffer, "buffer", algorithm);
                    for (size_t i = 0; i < buffer.size(); ++i) {
                        const float sum = value_of<float>(i, 0) + value_of<float>(i, 1) + value_of<float>(i, 2);
                        wrong[size_t(link.rank())] += buffer[i] != sum;
                    }
                }
        });
        CHECK(wrong == std::vector<int>(n, 0));
    }

    TEST_CASE("allreduce: the algorithm mpi needs MPI") {
        CHECK_THROWS_WITH_AS(par::run_threads(2,
                                              [](Link& link) {
                                                  Group group(link);
                                                  std::vector<float> values(4);
                                                  group.allreduce_sum(values, "x", Algorithm::mpi);
                                              }),
                             doctest::Contains("expected an MPI link"), Error);
    }
}
