// Weighted sums over ranks. Variances are taken about the combined mean. This needs a second small all-reduce, but
// avoids the cancellation of E[x^2] - E[x]^2, which loses precision if means are large.

#include "ringgrad/par/aggregate.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace rg::par {

namespace {

template <class T>
void weigh_values(std::span<T> values, double fraction) {
    if (fraction == 0) // 0 * NaN would be NaN
        std::fill(values.begin(), values.end(), T(0));
    else
        for (T& v : values) v = T(v * T(fraction));
}

void weigh(std::span<double> values, double fraction) { weigh_values(values, fraction); }

/// Returns the sum of the rows of all workers, each of the same length. Collective. `rows` are those of this rank.
std::vector<double> sum_rows(Group& group, std::vector<std::vector<double>> rows, std::string_view what) {
    if (group.most_workers() == 1) {
        group.allreduce_sum(std::span(rows[0]), what);
        return rows[0];
    }
    std::string bytes;
    for (const std::vector<double>& row : rows)
        bytes.append(reinterpret_cast<const char*>(row.data()), row.size() * sizeof(double));
    const std::vector<std::string> texts = group.allgather(bytes, what);
    std::vector<double> sum, row(rows[0].size());
    for (const int rank : group.order())
        for (int worker = 0; worker < group.workers(rank); ++worker) {
            std::memcpy(row.data(), texts[size_t(rank)].data() + size_t(worker) * row.size() * sizeof(double),
                        row.size() * sizeof(double));
            if (sum.empty())
                sum = row;
            else
                for (size_t i = 0; i < row.size(); ++i) sum[i] += row[i];
        }
    return sum;
}

/// Returns a checksum that depends on the positions of the values. Four independent lanes take 64-bit words in turn; at
/// most 7 values at the end go to lane 0. A step XORs the word into the lane's hash, rotates it, and multiplies it.
uint64_t checksum(std::span<const float> values) {
    constexpr uint64_t kOdd = 0x9E3779B97F4A7C15u;
    uint64_t lanes[4] = {1, 2, 3, 4};
    const auto mix = [](uint64_t h, uint64_t word) { return std::rotl(h ^ word, 29) * kOdd; };
    size_t i = 0;
    for (; i + 8 <= values.size(); i += 8)
        for (size_t lane = 0; lane < 4; ++lane) {
            uint64_t word;
            std::memcpy(&word, &values[i + 2 * lane], sizeof word);
            lanes[lane] = mix(lanes[lane], word);
        }
    for (; i < values.size(); ++i) lanes[0] = mix(lanes[0], std::bit_cast<uint32_t>(values[i]));
    uint64_t h = values.size();
    for (const uint64_t lane : lanes) h = mix(h, lane);
    return h ^ h >> 32;
}

} // namespace

double fraction_of(Group& group, int64_t samples) {
    RG_CHECK(samples >= 0, "fraction_of: expected at least zero samples, got ", samples, " (rank ", group.rank(), ")");
    double total = double(samples);
    group.allreduce_sum({&total, 1}, "sample count");
    RG_CHECK(total > 0, "fraction_of: expected samples on some rank, got none on all ", group.size());
    return double(samples) / total;
}

void weigh(std::span<float> values, double fraction) { weigh_values(values, fraction); }

void aggregate(Group& group, std::span<float> values, double fraction, std::string_view what, Algorithm algorithm,
               Wire wire) {
    weigh(values, fraction);
    group.allreduce_sum(values, what, algorithm, wire);
}

void aggregate(Group& group, std::span<double> values, double fraction, std::string_view what) {
    weigh(values, fraction);
    group.allreduce_sum(values, what);
}

void StateSum::add(std::span<const StateBlock> blocks, double fraction, std::span<const double> sums) {
    Worker worker{{}, {}, {sums.begin(), sums.end()}, fraction};
    for (const StateBlock& b : blocks) {
        worker.mean.insert(worker.mean.end(), b.mean, b.mean + b.channels);
        worker.variance.insert(worker.variance.end(), b.variance, b.variance + b.channels);
    }
    workers_.push_back(std::move(worker));
}

void StateSum::finish(Group& group, std::span<const StateBlock> blocks, std::span<double> sums) {
    RG_CHECK(std::ssize(workers_) == group.workers(group.rank()), "StateSum: expected the statistics of ",
             group.workers(group.rank()), " workers, got ", workers_.size(), " (rank ", group.rank(), ")");
    std::vector<std::vector<double>> rows;
    for (const Worker& worker : workers_) {
        std::vector<double>& row = rows.emplace_back(worker.mean);
        weigh(std::span(row), worker.fraction);
        row.insert(row.end(), worker.sums.begin(), worker.sums.end());
    }
    const std::vector<double> mean = sum_rows(group, std::move(rows), "running means");
    std::copy(mean.end() - std::ptrdiff_t(sums.size()), mean.end(), sums.begin());
    rows.clear();
    for (const Worker& worker : workers_) {
        std::vector<double>& row = rows.emplace_back(worker.variance);
        for (size_t c = 0; c < row.size(); ++c) {
            const double difference = worker.mean[c] - mean[c];
            row[c] += difference * difference;
        }
        weigh(std::span(row), worker.fraction);
    }
    workers_.clear();
    const std::vector<double> variance = sum_rows(group, std::move(rows), "running variances");
    size_t c = 0;
    for (const StateBlock& b : blocks)
        for (int64_t i = 0; i < b.channels; ++i, ++c) {
            b.mean[i] = float(mean[c]);
            b.variance[i] = float(variance[c]);
        }
}

void verify_identical(Group& group, std::span<const float> values, std::string_view what) {
    const uint64_t local_sum = checksum(values);
    const std::string_view bytes(reinterpret_cast<const char*>(&local_sum), sizeof local_sum);
    const std::vector<std::string> sums = group.allgather(bytes, what);
    const std::string* reference = &sums[0];
    for (const std::string& candidate : sums)
        if (2 * std::count(sums.begin(), sums.end(), candidate) > std::ptrdiff_t(sums.size())) reference = &candidate;
    std::string differ;
    for (size_t r = 0; r < sums.size(); ++r)
        if (sums[r] != *reference) differ += cat(differ.empty() ? "" : ", ", r);
    RG_CHECK(differ.empty(), "verify_identical ", what, ": expected the same bits on all ", group.size(),
             " ranks, got different ones on rank ", differ, " (", values.size(), " values on rank ", group.rank(), ")");
}

} // namespace rg::par
