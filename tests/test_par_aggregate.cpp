// Tests aggregation against the same statistics computed in double over all samples at once.

#include "ringgrad/core/rng.h"
#include "ringgrad/par/aggregate.h"
#include "ringgrad/tests/thread_link.h"

#include <cmath>
#include <functional>
#include <limits>

#include <doctest/doctest.h>

using namespace rg;
using par::Group;
using par::Link;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Moments {
    double mean = 0, variance = 0;
};

Moments moments_of(const std::vector<double>& x) {
    Moments m;
    for (const double v : x) m.mean += v / double(x.size());
    for (const double v : x) m.variance += (v - m.mean) * (v - m.mean) / double(x.size());
    return m;
}

std::string verify_failure(int n, size_t count, const std::function<void(int, std::vector<float>&)>& change) {
    std::vector<std::string> texts(static_cast<size_t>(n));
    par::run_threads(n, [&](Link& link) {
        Group group(link);
        std::vector<float> values(count);
        for (size_t i = 0; i < count; ++i) values[i] = float(i) * 0.37f - 5;
        change(link.rank(), values);
        try {
            par::verify_identical(group, values, "parameters");
        } catch (const Error& error) {
            texts[size_t(link.rank())] = error.what();
        }
    });
    for (const std::string& text : texts) // all ranks report the same ranks
        CHECK(text.substr(0, text.find('(')) == texts[0].substr(0, texts[0].find('(')));
    return texts[0];
}

void aggregate_state(Group& group, std::span<const par::StateBlock> blocks, double fraction,
                     std::span<double> sums = {}) {
    par::StateSum sum;
    sum.add(blocks, fraction, sums);
    sum.finish(group, blocks, sums);
}

} // namespace

TEST_SUITE("par") {
    TEST_CASE("weigh: sums are weighted, and ignore NaNs of a rank without samples") {
        const std::vector<double> shares = {0.5, 0.0, 0.375, 0.125};
        std::vector<std::vector<float>> gradients(4);
        std::vector<double> losses(4);
        par::run_threads(4, [&](Link& link) {
            Group group(link);
            const size_t r = size_t(link.rank());
            std::vector<float> g(20'000, r == 1 ? kNaN : 0.0f);
            if (r != 1)
                for (size_t i = 0; i < g.size(); ++i) g[i] = float(8 * (i % 1000) * (r + 1));
            double loss = r == 1 ? std::numeric_limits<double>::infinity() : double(r + 1);
            par::weigh(std::span(g), shares[r]);
            par::weigh(std::span(&loss, 1), shares[r]);
            group.allreduce_sum(g, "gradients");
            group.allreduce_sum({&loss, 1}, "loss");
            gradients[r] = g;
            losses[r] = loss;
        });
        std::vector<float> expected(20'000);
        for (size_t i = 0; i < expected.size(); ++i) // 8 * (0.5 + 0.375 * 3 + 0.125 * 4)
            expected[i] = float(17 * (i % 1000));
        for (size_t r = 0; r < 4; ++r) {
            CHECK(gradients[r] == expected);
            CHECK(losses[r] == 2.125);
        }
    }

    TEST_CASE("StateSum: gives mean and variance of all samples, also for large and unequal means") {
        const int64_t widths[] = {3, 1, 8};
        for (int n = 1; n <= 5; ++n) {
            CAPTURE(n);
            // Rank 1 of three or more has no samples, and arbitrary values in its memory.
            const auto samples_of = [&](int r) { return n >= 3 && r == 1 ? 0 : 20 + 7 * r; };
            const size_t channels = 12;
            std::vector<std::vector<double>> all(channels);
            std::vector<std::vector<float>> means(static_cast<size_t>(n)), variances(static_cast<size_t>(n));
            for (int r = 0; r < n; ++r)
                for (size_t c = 0; c < channels; ++c) {
                    Rng rng(3, Purpose::test, uint32_t(c), uint64_t(r));
                    std::vector<double> local;
                    for (int i = 0; i < samples_of(r); ++i) // the means of the ranks differ by about 10 deviations
                        local.push_back(1000.0 * double(c) + 10.0 * r + rng.normal());
                    all[c].insert(all[c].end(), local.begin(), local.end());
                    const Moments m = moments_of(local);
                    means[size_t(r)].push_back(local.empty() ? kNaN : float(m.mean));
                    variances[size_t(r)].push_back(local.empty() ? -1e30f : float(m.variance));
                }
            par::run_threads(n, [&](Link& link) {
                Group group(link);
                std::vector<par::StateBlock> blocks;
                float* mean = means[size_t(link.rank())].data();
                float* variance = variances[size_t(link.rank())].data();
                for (const int64_t width : widths) {
                    blocks.push_back({mean, variance, width});
                    mean += width;
                    variance += width;
                }
                aggregate_state(group, blocks, samples_of(link.rank()) / double(all[0].size()));
            });
            for (size_t c = 0; c < channels; ++c) {
                CAPTURE(c);
                const Moments whole = moments_of(all[c]);
                for (int r = 0; r < n; ++r) {
                    CHECK(means[size_t(r)][c] == means[0][c]);
                    CHECK(variances[size_t(r)][c] == variances[0][c]);
                }
                // Local means are rounded to float. Half a unit of 1e4 is 5e-4, and differences are at most 40.
                CHECK(means[0][c] == doctest::Approx(whole.mean).epsilon(1e-6));
                CHECK(std::abs(variances[0][c] - whole.variance) < 1e-3 * whole.variance + 2e-2);
            }
        }
    }

    TEST_CASE("StateSum: the mean-difference term, by hand, and extra sums") {
        std::vector<float> mean = {1, 5}, variance = {2, 6}; // by rank; shares 1/4 and 3/4
        std::vector<std::vector<double>> extra_sums = {{3, 10}, {4, 200}};
        std::vector<std::vector<double>> alone = extra_sums; // where no layer has a state
        par::run_threads(2, [&](Link& link) {
            Group group(link);
            const size_t r = size_t(link.rank());
            const par::StateBlock block{&mean[r], &variance[r], 1};
            aggregate_state(group, {&block, 1}, r == 0 ? 0.25 : 0.75, extra_sums[r]);
            aggregate_state(group, {}, r == 0 ? 0.0 : 1.0, alone[r]);
        });
        for (const auto& sums : {extra_sums[0], extra_sums[1], alone[0], alone[1]})
            CHECK(sums == std::vector<double>{7, 210});
        CHECK(mean == std::vector<float>{4, 4});
        CHECK(variance == std::vector<float>{8, 8}); // (2 + 9) / 4 + 3 (6 + 1) / 4
    }

    TEST_CASE("workers: sums have the same bits on any number of ranks and nodes") {
        constexpr int kWorkers = 7;
        constexpr size_t kValues = 3001; // three slices of several messages between nodes
        constexpr double kShare = 1.0 / kWorkers;
        const auto value = [](Rng& rng) { return rng.normal() * std::exp(4 * rng.normal()); };
        std::vector<float> expected;
        std::vector<double> expected_state;
        for (int n = 1; n <= kWorkers; ++n)
            for (int per_node = 1; per_node <= n; ++per_node) {
                CAPTURE(n);
                CAPTURE(per_node);
                std::vector<std::vector<float>> sums(static_cast<size_t>(n));
                std::vector<std::vector<double>> states(static_cast<size_t>(n));
                const auto body = [&](Link& link) {
                    Group group(link);
                    std::vector<int> of_rank;
                    for (int r = 0; r < n; ++r) of_rank.push_back((r + 1) * kWorkers / n - r * kWorkers / n);
                    group.sum_in_order();
                    group.set_workers(of_rank);
                    const size_t stride = (kValues + 15) / 16 * 16;
                    auto* const memory = reinterpret_cast<float*>(
                        group.memory(size_t(group.most_workers()) * stride * sizeof(float), "vectors").data());
                    const int rank = group.rank(), first = rank * kWorkers / n, count = group.workers(rank);
                    for (int repeat = 0; repeat < 2; ++repeat) {
                        par::StateSum state_sum;
                        std::array<float, 2> mean, variance;
                        std::array<double, 1> extra;
                        const par::StateBlock block{mean.data(), variance.data(), 2};
                        for (int w = 0; w < count; ++w) {
                            Rng rng(5, Purpose::test, 0, uint64_t(first + w));
                            float* const vector = memory + size_t((w + 1) % count) * stride; // the last one lies first
                            for (size_t i = 0; i < kValues; ++i) vector[i] = value(rng);
                            mean = {value(rng), value(rng)}, variance = {value(rng), value(rng)};
                            extra = {double(value(rng)) / 3};
                            state_sum.add({&block, 1}, kShare, extra);
                        }
                        group.sum_over_workers({memory, kValues}, stride, "vectors");
                        state_sum.finish(group, {&block, 1}, extra);
                        sums[size_t(rank)].assign(memory, memory + kValues);
                        states[size_t(rank)] = {mean[0], mean[1], variance[0], variance[1], extra[0]};
                    }
                };
                par::run_threads(n, body, per_node);
                if (n == 1) expected = sums[0], expected_state = states[0];
                for (const std::vector<float>& sum : sums) CHECK(sum == expected);
                for (const std::vector<double>& state : states) CHECK(state == expected_state);
            }
    }

    TEST_CASE("workers: wrong calls are errors") {
        par::run_threads(1, [](Link& link) {
            Group group(link);
            float value = 1;
            CHECK_THROWS_WITH_AS(group.sum_over_workers({&value, 1}, 1, "x"), doctest::Contains("set_workers() first"),
                                 Error);
            CHECK_THROWS_WITH_AS(group.set_workers({1}), doctest::Contains("after sum_in_order()"), Error);
            group.sum_in_order();
            CHECK_THROWS_WITH_AS(group.set_workers({0}), doctest::Contains("at least one worker"), Error);
            CHECK_THROWS_WITH_AS(group.set_workers({1, 1}), doctest::Contains("got 2 numbers"), Error);
            group.set_workers({2});
            par::StateSum sum;
            sum.add({}, 1);
            CHECK_THROWS_WITH_AS(sum.finish(group, {}), doctest::Contains("statistics of 2 workers, got 1"), Error);
        });
    }

    TEST_CASE("verify_identical: passes if equal, and otherwise names the ranks that differ") {
        const auto nothing = [](int, std::vector<float>&) {};
        for (const int n : {1, 2, 5}) CHECK(verify_failure(n, 1003, nothing).empty());

        for (const size_t place : {size_t(0), size_t(13), size_t(1001), size_t(1002)}) {
            CAPTURE(place);
            const std::string text = verify_failure(5, 1003, [&](int r, std::vector<float>& v) {
                if (r == 1 || r == 3) v[place] = std::nextafter(v[place], 1e9f);
            });
            CHECK(text.find("on all 5 ranks, got different ones on rank 1, 3 (") != std::string::npos);
        }
        const std::string first = verify_failure(3, 1003, [](int r, std::vector<float>& v) { v[7] += float(r == 0); });
        CHECK(first.find("different ones on rank 0 (") != std::string::npos); // the majority is right
        const std::string pair = verify_failure(2, 1003, [](int r, std::vector<float>& v) { v[7] += float(r); });
        CHECK(pair.find("different ones on rank 1 (") != std::string::npos); // without a majority, rank 0 is right
        const std::string swapped = verify_failure(2, 64, [](int r, std::vector<float>& v) {
            if (r == 1) std::swap(v[8], v[16]);
        });
        CHECK(!swapped.empty());
        const std::string zero = verify_failure(2, 64, [](int r, std::vector<float>& v) { v[9] = r ? -0.0f : 0.0f; });
        CHECK(!zero.empty());
    }
}
