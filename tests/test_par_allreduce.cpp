// Tests the all-reduce with lengths around the number of ranks, and segments so short that small vectors take the
// pipelined path.

#include "ringgrad/core/bf16.h"
#include "ringgrad/core/rng.h"
#include "ringgrad/par/aggregate.h"
#include "ringgrad/tests/ranks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <doctest/doctest.h>

using namespace rg;
using par::Algorithm;
using par::Group;
using par::Link;

namespace {

template <class T>
void check_sums(Algorithm algorithm) {
    par::on_ranks([&](Link& link) {
        const size_t n = size_t(link.size());
        for (const size_t segment : {size_t(1), size_t(60), size_t(256), size_t(256) * 1024}) {
            if (algorithm == Algorithm::small && segment != 256 * 1024) continue; // this algorithm has no segments
            Group group(link, segment);
            for (const size_t count : {size_t(0), size_t(1), n - 1, n, n + 1, size_t(1000), size_t(676'714)}) {
                if (segment == 1 && count > 100) continue; // one element at a time is too slow for long vectors
                if (count > 1000 && (segment < 256 * 1024 || n > 4)) continue;
                CAPTURE(n);
                CAPTURE(count);
                CAPTURE(segment);
                std::vector<T> values(count + 2, T(-5)), expected = values; // with a guard value on each side
                for (size_t i = 0; i < count; ++i) expected[i + 1] = T(par::sum_of(i, link));
                for (int repeat = 0; repeat < 2; ++repeat) { // the second run uses the cached plan
                    for (size_t i = 0; i < count; ++i) values[i + 1] = T(par::value_of(i, link.rank()));
                    group.allreduce_sum(std::span(values).subspan(1, count), "test", algorithm);
                    CHECK(values == expected);
                }
            }
        }
    });
}

/// Returns random values of one rank, of very different sizes.
std::vector<float> random_values(size_t count, int rank) {
    Rng rng(11, Purpose::test, 0, uint64_t(rank));
    std::vector<float> values(count);
    for (float& v : values) v = rng.normal() * std::exp(4 * rng.normal());
    return values;
}

/// Returns `count` floats of the group's memory.
std::span<float> floats_in_memory(Group& group, size_t count) {
    return {reinterpret_cast<float*>(group.memory(count * sizeof(float), "test").data()), count};
}

} // namespace

TEST_SUITE("par") {
    TEST_CASE("ring: gives exact sums") {
        check_sums<float>(Algorithm::ring);
        check_sums<double>(Algorithm::ring);
    }

    TEST_CASE("small: gives exact sums") {
        check_sums<float>(Algorithm::small);
        check_sums<double>(Algorithm::small);
    }

    TEST_CASE("shared: gives exact sums through the window") {
        check_sums<float>(Algorithm::shared);
        check_sums<double>(Algorithm::shared);
    }

    TEST_CASE("shared: gives exact sums of any range of the group's memory in place") {
        par::on_nodes([](Link& link) { // nodes have the same size or not
            const size_t count = 1003;
            Group group(link, 256);
            std::span<double> memories[2]; // the group must tell them apart
            for (std::span<double>& memory : memories) {
                const std::span<std::byte> bytes = group.memory(count * sizeof(double), "test");
                memory = {reinterpret_cast<double*>(bytes.data()), count};
                CHECK(std::ranges::count(memory, 0.0) == count);
            }
            for (const std::span<double> memory : memories)
                for (const size_t begin : {size_t(0), size_t(1), size_t(8), size_t(13), size_t(1000)})
                    for (const size_t length : {size_t(0), size_t(1), size_t(7), size_t(100), count}) {
                        const size_t end = std::min(count, begin + length);
                        for (size_t i = 0; i < count; ++i) memory[i] = par::value_of(i, link.rank());
                        group.allreduce_sum(memory.subspan(begin, end - begin), "in place");
                        size_t wrong = 0;
                        for (size_t i = 0; i < count; ++i) {
                            const bool summed = i >= begin && i < end;
                            wrong += memory[i] != (summed ? par::sum_of(i, link) : par::value_of(i, link.rank()));
                        }
                        CHECK(wrong == 0);
                    }
        });
    }

    TEST_CASE("shared: adds in the order of nodes and ranks, for any chunks and any place") {
        par::on_nodes([](Link& link) {
            if (link.node().ranks.empty()) return; // nodes differ in size
            const size_t count = 40003;            // more than a message between nodes
            std::vector<float> expected(count);
            const auto value = [](size_t i, int rank) { return 1 / float(1 + (i * 31 + size_t(rank) * 17) % 1009); };
            for (const int r : link.node().order)
                for (size_t i = 0; i < count; ++i)
                    expected[i] = r == link.node().order[0] ? value(i, r) : expected[i] + value(i, r);
            for (const size_t segment : {size_t(100), size_t(512), size_t(1) << 20}) {
                if (segment == 100 && link.size() > 4) continue; // takes long
                CAPTURE(segment);
                Group group(link, segment);
                std::vector<float> ordinary(count);
                for (const std::span<float> values : {std::span(ordinary), floats_in_memory(group, count)}) {
                    for (size_t i = 0; i < count; ++i) values[i] = value(i, link.rank());
                    group.allreduce_sum(values, "fractions", Algorithm::shared);
                    CHECK(std::memcmp(values.data(), expected.data(), count * sizeof(float)) == 0);
                }
            }
        });
    }

    TEST_CASE("shared: bf16 between nodes rounds each node's sums, and all ranks get the same") {
        par::on_nodes([](Link& link) {
            if (link.size() == 1) return;
            Group group(link);
            const size_t count = 9001; // two messages of bf16 between nodes, and one value
            const std::span<float> values = floats_in_memory(group, count);
            CHECK_THROWS_WITH_AS(group.allreduce_sum(values, "x", Algorithm::ring, par::Wire::bf16),
                                 doctest::Contains("expected algorithm automatic or shared"), Error);
            const std::vector<int>& order = link.node().order;
            const size_t per_node = link.node().ranks.size();
            if (per_node == 0) {
                CHECK_THROWS_WITH_AS(group.allreduce_sum(values, "x", Algorithm::automatic, par::Wire::bf16),
                                     doctest::Contains("got nodes with different numbers of ranks"), Error);
                return;
            }
            std::vector<float> expected(count, 0);
            for (size_t place = 0; place < order.size(); ++place) {
                Rng rng(4, Purpose::test, 0, uint64_t(order[place]));
                const bool last_of_node = place % per_node == per_node - 1;
                for (float& e : expected) {
                    e = place == 0 ? rng.normal() : e + rng.normal();
                    if (last_of_node && per_node < order.size()) e = to_float(to_bf16(e));
                }
            }
            Rng rng(4, Purpose::test, 0, uint64_t(link.rank()));
            for (float& v : values) v = rng.normal();
            group.allreduce_sum(values, "random", Algorithm::automatic, par::Wire::bf16);
            CHECK(std::ranges::equal(values, expected));
        });
    }

    TEST_CASE("shared: operations of all kinds can follow each other") {
        par::on_ranks([](Link& link) {
            Group group(link, 64);
            const Algorithm algorithms[] = {Algorithm::shared, Algorithm::ring, Algorithm::small};
            size_t wrong = 0;
            for (size_t i = 0; i < 300; ++i) {
                std::vector<float> values(i % 37);
                for (size_t k = 0; k < values.size(); ++k) values[k] = par::value_of(k, link.rank());
                group.allreduce_sum(values, "mixed", algorithms[i * i % 7 % 3]);
                for (size_t k = 0; k < values.size(); ++k) wrong += values[k] != par::sum_of(k, link);
                if (i % 5 == 0) group.barrier("between");
                if (i % 11 == 0) wrong += group.all(link.rank() != 0, "one says no");
            }
            CHECK(wrong == 0);
        });
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
        par::on_ranks([](Link& link) {
            const size_t count = 1003;
            std::vector<double> sum(count, 0.0), size(count, 0.0);
            for (int r = 0; r < link.size(); ++r) {
                const std::vector<float> values = random_values(count, r);
                for (size_t i = 0; i < count; ++i) {
                    sum[i] += values[i];
                    size[i] += std::abs(values[i]);
                }
            }
            for (const Algorithm algorithm : {Algorithm::ring, Algorithm::small, Algorithm::shared}) {
                std::vector<float> results[2];
                for (std::vector<float>& result : results) {
                    Group group(link, 512);
                    result = random_values(count, link.rank());
                    group.allreduce_sum(result, "random", algorithm);
                    CHECK(par::same_on_all(group, result));
                }
                CHECK(std::memcmp(results[0].data(), results[1].data(), count * sizeof(float)) == 0);
                double worst = 0;
                for (size_t i = 0; i < count; ++i) worst = std::max(worst, std::abs(results[0][i] - sum[i]) / size[i]);
                CHECK(worst < link.size() * 0x1p-24); // n - 1 roundings by half a unit of a partial sum
            }
        });
    }

    TEST_CASE("allreduce: handles more buffers than plans") {
        par::on_ranks([](Link& link) {
            if (link.size() > 4) return; // takes long
            Group group(link);
            std::vector<std::vector<float>> buffers;
            for (size_t i = 0; i < Group::kPlans + 5; ++i) buffers.emplace_back(8000 + i);
            size_t wrong = 0;
            // The group drops plans and makes them again.
            for (const Algorithm algorithm : {Algorithm::ring, Algorithm::ring, Algorithm::small, Algorithm::automatic})
                for (std::vector<float>& buffer : buffers) {
                    for (size_t i = 0; i < buffer.size(); ++i) buffer[i] = par::value_of(i, link.rank());
                    group.allreduce_sum(buffer, "buffer", algorithm);
                    for (size_t i = 0; i < buffer.size(); ++i) wrong += buffer[i] != par::sum_of(i, link);
                }
            CHECK(wrong == 0);
        });
    }
}
