// Tests the all-reduce with lengths around the number of ranks, and segments so short that small vectors take the
// pipelined path.

#include "core/bf16.h"
#include "core/rng.h"
#include "par/aggregate.h"
#include "tests/par/ranks.h"
#include "tests/temp_dir.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

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
            Group group(link, segment);
            for (const size_t count : {size_t(0), size_t(1), n - 1, n, n + 1, size_t(1000), size_t(676'714)}) {
                if (segment == 1 && count > 100) continue; // one element at a time is too slow for long vectors
                if (count > 1000 && (segment < 256 * 1024 || n > 4)) continue;
                INFO("algorithm ", int(algorithm), ", n ", n, ", count ", count, ", segment ", segment);
                std::vector<T> values(count + 2, T(-5)), expected = values; // with a guard value on each side
                for (size_t i = 0; i < count; ++i) expected[i + 1] = T(par::sum_of(i, link));
                for (size_t i = 0; i < count; ++i) values[i + 1] = T(par::value_of(i, link.rank()));
                group.allreduce_sum(std::span(values).subspan(1, count), "test", algorithm);
                CHECK(values == expected);
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
    return {reinterpret_cast<float*>(group.allocate_shared(count * sizeof(float), "test").data()), count};
}

/// Adds one rank's values after another, in this order.
std::vector<float> sum_in_order(size_t count, std::span<const int> ranks) {
    std::vector<float> sum = random_values(count, ranks[0]);
    for (const int rank : ranks.subspan(1)) {
        const std::vector<float> values = random_values(count, rank);
        for (size_t i = 0; i < count; ++i) sum[i] += values[i];
    }
    return sum;
}

/// Adds the vectors of the peers in the order of sum_by_halving(): first those beyond a power of two, then pairs.
std::vector<float> sum_by_halving(std::vector<std::vector<float>> peers, par::Wire wire) {
    const auto rounded = [&](float value) { return wire == par::Wire::bf16 ? to_float(to_bf16(value)) : value; };
    for (std::vector<float>& values : peers)
        for (float& v : values) v = rounded(v);
    const auto add = [&](std::vector<float>& sum, const std::vector<float>& values) {
        for (size_t i = 0; i < sum.size(); ++i) sum[i] = rounded(sum[i] + values[i]);
    };
    const size_t power = std::bit_floor(peers.size());
    for (size_t extra = peers.size() - power, i = 0; i < extra; ++i) {
        add(peers[i], peers[i + 1]);
        peers.erase(peers.begin() + ptrdiff_t(i) + 1);
    }
    while (peers.size() > 1)
        for (size_t i = 0; i < peers.size(); ++i) {
            add(peers[i], peers[i + 1]);
            peers.erase(peers.begin() + ptrdiff_t(i) + 1);
        }
    return peers[0];
}

} // namespace

TEST_SUITE("par") {
    TEST_CASE("allreduce: every algorithm gives exact sums") {
        for (const Algorithm algorithm : {Algorithm::ring, Algorithm::halving, Algorithm::shared}) {
            check_sums<float>(algorithm);
            check_sums<double>(algorithm);
        }
    }

    TEST_CASE("halving: adds in an order that depends on the number of ranks or nodes alone, also in bf16") {
        par::on_nodes([](Link& link) {
            if (link.size() == 1) return;
            for (const size_t message : {size_t(60), par::kMessageBytes}) {
                Group group(link, message);
                for (const size_t count : {size_t(1), size_t(2), size_t(31), size_t(1000), size_t(4099)}) {
                    if (message == 60 && count > 31) continue; // takes long
                    const std::span<float> values = floats_in_memory(group, count);
                    for (const par::Wire wire : {par::Wire::full, par::Wire::bf16})
                        for (const Algorithm algorithm : {Algorithm::halving, Algorithm::shared}) {
                            const size_t per_node = algorithm == Algorithm::halving ? 1 : link.node().ranks.size();
                            if (per_node == 0) continue; // nodes differ in size
                            const size_t nodes = size_t(link.size()) / per_node;
                            if (algorithm == Algorithm::shared &&
                                par::algorithm_for(count * sizeof(float), int(nodes)) != Algorithm::halving)
                                continue;
                            CAPTURE(link.size());
                            CAPTURE(per_node);
                            CAPTURE(count);
                            CAPTURE(message);
                            std::vector<int> order(size_t(link.size()));
                            std::iota(order.begin(), order.end(), 0);
                            if (algorithm == Algorithm::shared) order = link.node().order;
                            std::vector<std::vector<float>> sums;
                            for (size_t n = 0; n < nodes; ++n)
                                sums.push_back(sum_in_order(count, std::span(order).subspan(n * per_node, per_node)));
                            const std::vector<float> expected = nodes == 1 ? sums[0] : sum_by_halving(sums, wire);
                            std::ranges::copy(random_values(count, link.rank()), values.begin());
                            group.allreduce_sum(values, "random", algorithm, wire);
                            CHECK(std::ranges::equal(values, expected));
                        }
                }
            }
        });
    }

    TEST_CASE("ring: in bf16, all ranks get the same sums, each rounded once per rank") {
        par::on_ranks([](Link& link) {
            if (link.size() == 1) return;
            Group group(link);
            std::vector<int> order(size_t(link.size()));
            std::iota(order.begin(), order.end(), 0);
            std::vector<float> values = random_values(9001, link.rank());
            for (float& v : values) v = std::abs(v); // so that the error of a sum is small
            std::vector<float> expected(values.size(), 0);
            for (const int rank : order) {
                const std::vector<float> theirs = random_values(values.size(), rank);
                for (size_t i = 0; i < values.size(); ++i) expected[i] += std::abs(theirs[i]);
            }
            group.allreduce_sum(values, "random", Algorithm::ring, par::Wire::bf16);
            CHECK(par::same_on_all(group, values));
            float worst = 0;
            for (size_t i = 0; i < values.size(); ++i)
                worst = std::max(worst, std::abs(values[i] - expected[i]) / expected[i]);
            CHECK(worst < float(link.size()) * 0x1p-8f); // each rounds by half a unit
            CHECK(worst > 0);
        });
    }

    TEST_CASE("shared: gives exact sums of any range of the group's memory in place") {
        par::on_nodes([](Link& link) { // nodes have the same size or not
            const size_t count = 1003;
            Group group(link, 256);
            std::span<double> memories[2]; // the group must tell them apart
            for (std::span<double>& memory : memories) {
                const std::span<std::byte> bytes = group.allocate_shared(count * sizeof(double), "test");
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

    TEST_CASE("chain: adds in the order of nodes and ranks, for any chunks and any place") {
        par::on_nodes([](Link& link) {
            if (link.node().ranks.empty()) return; // nodes differ in size
            const size_t count = 17003;            // more bytes than are in flight between nodes
            std::vector<float> expected(count);
            const auto value = [](size_t i, int rank) { return 1 / float(1 + (i * 31 + size_t(rank) * 17) % 1009); };
            for (const int r : link.node().order)
                for (size_t i = 0; i < count; ++i)
                    expected[i] = r == link.node().order[0] ? value(i, r) : expected[i] + value(i, r);
            for (const size_t segment : {size_t(100), size_t(512), size_t(1) << 20}) {
                if (segment == 100 && link.size() > 2) continue; // takes long
                CAPTURE(segment);
                Group group(link, segment);
                group.set_ordered_sums();
                if (link.size() > 1)
                    CHECK_ERROR("expected Wire::full after set_ordered_sums()",
                                group.allreduce_sum(std::span<float>(), "x", Algorithm::automatic, par::Wire::bf16));
                std::vector<float> ordinary(count);
                for (const std::span<float> values : {std::span(ordinary), floats_in_memory(group, count)}) {
                    for (size_t i = 0; i < count; ++i) values[i] = value(i, link.rank());
                    group.allreduce_sum(values, "fractions", Algorithm::shared);
                    CHECK(std::memcmp(values.data(), expected.data(), count * sizeof(float)) == 0);
                }
            }
        });
    }

    TEST_CASE("shared: operations of all kinds can follow each other") {
        par::on_ranks([](Link& link) {
            Group group(link, 64);
            const Algorithm algorithms[] = {Algorithm::shared, Algorithm::ring, Algorithm::halving};
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

    TEST_CASE("choice: ring for long vectors, except for 4, 8, 16 ... ranks; else halving") {
        for (const int n : {2, 3, 4, 5, 8, 12, 64, 1000}) {
            CAPTURE(n);
            CHECK(par::algorithm_for(64, n) == Algorithm::halving);
            const bool fewer_rounds = n > 2 && std::has_single_bit(unsigned(n)); // halving sends the same bytes
            CHECK(par::algorithm_for(size_t(1) << 28, n) == (fewer_rounds ? Algorithm::halving : Algorithm::ring));
            bool ring = false; // from some length on, the choice is ring
            for (size_t bytes = 64; bytes <= size_t(1) << 28; bytes *= 2) {
                const bool now = par::algorithm_for(bytes, n) == Algorithm::ring;
                CHECK(now >= ring);
                ring = now;
            }
        }
        // The gradients of cifar_net in one sum
        for (const int n : {2, 3, 5, 6}) CHECK(par::algorithm_for(2'706'856, n) == Algorithm::ring);
        for (const int n : {4, 8, 16, 64}) CHECK(par::algorithm_for(2'706'856, n) == Algorithm::halving);
        const par::CostModel cost{1, 0.1, 0.01}; // computed by hand
        CHECK(cost.ring(1000, 4) == doctest::Approx(6 + 150 + 7.5));
        CHECK(cost.halving(1000, 4) == doctest::Approx(2 * 111)); // one message, which is not halved
        CHECK(cost.halving(1000, 6) == doctest::Approx(2 * 101 + 10 + 2 * 111));
        CHECK(cost.halving(32'000, 4) == doctest::Approx(2 * 1601 + 160 + 2 * 801 + 80));
        CHECK(cost.halving(16'000, 4) == doctest::Approx(2 * 801 + 80 + 801 + 80));
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
            for (const Algorithm algorithm : {Algorithm::ring, Algorithm::halving, Algorithm::shared}) {
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
}
