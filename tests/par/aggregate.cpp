// Tests aggregation against the same statistics computed in double over all samples at once.

#include "core/rng.h"
#include "par/aggregate.h"
#include "tests/par/ranks.h"
#include "tests/temp_dir.h"

#include <cmath>
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

void aggregate_state(Group& group, std::span<const par::RunningStats> blocks, double fraction,
                     std::span<double> sums = {}) {
    par::RunningStatsSum sum;
    sum.add(blocks, fraction, sums);
    sum.finish(group, blocks, sums);
}

constexpr int kWorkers = 7;

struct WorkerSums {
    std::vector<float> values;
    std::vector<double> state;
};

/// Sums vectors and statistics of kWorkers workers, which the ranks share evenly, in the order of order().
WorkerSums sum_over_workers(Group& group) {
    constexpr size_t kValues = 3001; // three slices of several messages between nodes
    const auto value = [](Rng& rng) { return rng.normal() * std::exp(4 * rng.normal()); };
    group.set_ordered_sums();
    const int n = group.size();
    int first = 0; // worker of this rank
    std::vector<int> of_rank(static_cast<size_t>(n));
    for (int place = 0; place < n; ++place) {
        const int rank = group.sum_order()[size_t(place)], begin = place * kWorkers / n;
        of_rank[size_t(rank)] = (place + 1) * kWorkers / n - begin;
        if (rank == group.rank()) first = begin;
    }
    group.set_workers(of_rank);
    const size_t stride = (kValues + 15) / 16 * 16;
    auto* const memory = reinterpret_cast<float*>(
        group.allocate_shared(size_t(group.most_workers()) * stride * sizeof(float), "vectors").data());
    const int count = group.workers(group.rank());
    WorkerSums sums;
    for (int repeat = 0; repeat < 2; ++repeat) {
        par::RunningStatsSum state_sum;
        std::array<float, 2> mean, variance;
        std::array<double, 1> extra;
        const par::RunningStats block{mean.data(), variance.data(), 2};
        for (int w = 0; w < count; ++w) {
            Rng rng(5, Purpose::test, 0, uint64_t(first + w));
            float* const vector = memory + size_t((w + 1) % count) * stride; // the last one lies first
            for (size_t i = 0; i < kValues; ++i) vector[i] = value(rng);
            mean = {value(rng), value(rng)}, variance = {value(rng), value(rng)};
            extra = {double(value(rng)) / 3};
            state_sum.add({&block, 1}, 1.0 / kWorkers, extra);
        }
        group.sum_over_workers({memory, kValues}, stride, "vectors");
        state_sum.finish(group, {&block, 1}, extra);
        sums.values.assign(memory, memory + kValues);
        sums.state = {mean[0], mean[1], variance[0], variance[1], extra[0]};
    }
    return sums;
}

} // namespace

TEST_SUITE("par") {
    TEST_CASE("weigh: sums are weighted, and ignore NaNs of a rank without samples") {
        par::on_ranks([](Link& link) {
            Group group(link);
            const auto share_of = [](int r) { return r == 1 ? 0 : (r + 1) / 64.0; };
            const bool no_samples = link.rank() == 1;
            std::vector<float> gradients(20'000), expected(20'000);
            double loss = no_samples ? std::numeric_limits<double>::infinity() : link.rank() + 1, expected_loss = 0;
            for (int r = 0; r < link.size(); ++r) expected_loss += share_of(r) * (r + 1);
            for (size_t i = 0; i < gradients.size(); ++i) {
                gradients[i] = no_samples ? kNaN : float(8 * (i % 1000) * size_t(link.rank() + 1));
                expected[i] = float(8 * double(i % 1000) * expected_loss);
            }
            par::weigh(std::span(gradients), share_of(link.rank()));
            par::weigh(std::span(&loss, 1), share_of(link.rank()));
            group.allreduce_sum(gradients, "gradients");
            group.allreduce_sum({&loss, 1}, "loss");
            CHECK(gradients == expected);
            CHECK(loss == expected_loss);
        });
    }

    TEST_CASE("RunningStatsSum: gives mean and variance of all samples, also for large and unequal means") {
        par::on_ranks([](Link& link) {
            const int n = link.size();
            // Rank 1 of three or more has no samples, and arbitrary values in its memory.
            const auto samples_of = [&](int r) { return n >= 3 && r == 1 ? 0 : 20 + 7 * r; };
            const size_t channels = 12;
            std::vector<std::vector<double>> all(channels);
            std::vector<float> means, variances;
            for (int r = 0; r < n; ++r)
                for (size_t c = 0; c < channels; ++c) {
                    Rng rng(3, Purpose::test, uint32_t(c), uint64_t(r));
                    std::vector<double> local;
                    for (int i = 0; i < samples_of(r); ++i) // the means of the ranks differ by about 10 deviations
                        local.push_back(1000.0 * double(c) + 10.0 * r + rng.normal());
                    all[c].insert(all[c].end(), local.begin(), local.end());
                    if (r != link.rank()) continue;
                    const Moments m = moments_of(local);
                    means.push_back(local.empty() ? kNaN : float(m.mean));
                    variances.push_back(local.empty() ? -1e30f : float(m.variance));
                }
            Group group(link);
            std::vector<par::RunningStats> blocks;
            size_t channel = 0;
            for (const int64_t width : {3, 1, 8}) {
                blocks.push_back({&means[channel], &variances[channel], width});
                channel += size_t(width);
            }
            aggregate_state(group, blocks, samples_of(link.rank()) / double(all[0].size()));
            CHECK(par::same_on_all(group, means));
            CHECK(par::same_on_all(group, variances));
            for (size_t c = 0; c < channels; ++c) {
                CAPTURE(c);
                const Moments whole = moments_of(all[c]);
                // Local means are rounded to float. Half a unit of 1e4 is 5e-4, and differences are at most 80.
                CHECK(means[c] == doctest::Approx(whole.mean).epsilon(1e-6));
                CHECK(std::abs(variances[c] - whole.variance) < 1e-3 * whole.variance + 4e-2);
            }
        });
    }

    TEST_CASE("RunningStatsSum: the mean-difference term, by hand, and extra sums") {
        par::on_ranks([](Link& link) {
            if (link.size() == 1) return;
            Group group(link);
            // The first rank has a quarter of the samples, the last one has the others.
            const bool first = link.rank() == 0, last = link.rank() == link.size() - 1;
            float mean = first ? 1 : last ? 5 : kNaN, variance = first ? 2 : last ? 6 : kNaN;
            const par::RunningStats block{&mean, &variance, 1};
            std::vector<double> sums = first ? std::vector<double>{3, 10} : std::vector<double>{0, 0};
            if (last) sums = {4, 200};
            std::vector<double> alone = sums; // where no layer has a state
            aggregate_state(group, {&block, 1}, first ? 0.25 : last ? 0.75 : 0, sums);
            aggregate_state(group, {}, last ? 1 : 0, alone);
            CHECK(sums == std::vector<double>{7, 210});
            CHECK(alone == sums);
            CHECK(mean == 4);
            CHECK(variance == 8); // (2 + 9) / 4 + 3 (6 + 1) / 4
        });
    }

    TEST_CASE("RunningStatsSum: n workers have the running statistics of one with the whole mini-batch") {
        par::on_ranks([](Link& link) {
            Group group(link);
            for (const double momentum : {0.1, 0.5, 1.0}) {
                std::vector<double> own, all;
                Rng rng(uint64_t(link.size()), Purpose::test);
                for (int r = 0; r < link.size(); ++r)
                    for (int i = 0; i < 10 + 5 * r; ++i) {
                        all.push_back(3 * r + double(rng.normal()));
                        if (r == link.rank()) own.push_back(all.back());
                    }
                const auto updated = [&](const std::vector<double>& x) { // from a mean of 2 and a variance of 7
                    const Moments m = moments_of(x);
                    return Moments{(1 - momentum) * 2 + momentum * m.mean, (1 - momentum) * 7 + momentum * m.variance};
                };
                const Moments expected = updated(all), m = updated(own);
                float mean = float(m.mean), variance = float(m.variance);
                const par::RunningStats block{&mean, &variance, 1, momentum};
                aggregate_state(group, {&block, 1}, double(own.size()) / double(all.size()));
                // The difference of two means of f32 has few digits, and is divided by the momentum.
                CHECK(double(mean) == doctest::Approx(expected.mean).epsilon(1e-5));
                CHECK(double(variance) == doctest::Approx(expected.variance).epsilon(1e-4));
            }
        });
    }

    TEST_CASE("workers: sums have the same bits on any number of ranks and nodes") {
        par::SingleLink single;
        Group one(single);
        const WorkerSums expected = sum_over_workers(one);
        par::on_nodes([&](Link& link) {
            if (link.size() > kWorkers) return;
            Group group(link);
            const WorkerSums sums = sum_over_workers(group);
            CHECK(sums.values == expected.values);
            CHECK(sums.state == expected.state);
        });
    }

    TEST_CASE("workers: wrong calls are errors") {
        par::SingleLink link;
        Group group(link);
        float value = 1;
        CHECK_ERROR("set_workers() first", group.sum_over_workers({&value, 1}, 1, "x"));
        CHECK_ERROR("after set_ordered_sums()", group.set_workers({1}));
        group.set_ordered_sums();
        CHECK_ERROR("at least one worker", group.set_workers({0}));
        CHECK_ERROR("got 2 numbers", group.set_workers({1, 1}));
        group.set_workers({2});
        par::RunningStatsSum sum;
        sum.add({}, 1);
        CHECK_ERROR("statistics of 2 workers, got 1", sum.finish(group, {}));
    }
}
