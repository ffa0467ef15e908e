// Weighted sums over workers. Variances are taken about the combined mean. This needs a second collective sum, but
// avoids the cancellation of E[x^2] - E[x]^2, which loses precision if means are large. A sum is one all-reduce if
// every rank has one worker, else an allgather with local additions in the order of the workers.

#include "par/aggregate.h"

#include <algorithm>

namespace rg::par {

namespace {

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
    for (const int rank : group.sum_order())
        for (int worker = 0; worker < group.workers(rank); ++worker) {
            // Not memcpy: a network without batch norm has no values here, and data() may be null.
            const size_t size = row.size() * sizeof(double);
            texts[size_t(rank)].copy(reinterpret_cast<char*>(row.data()), size, size_t(worker) * size);
            if (sum.empty())
                sum = row;
            else
                for (size_t i = 0; i < row.size(); ++i) sum[i] += row[i];
        }
    return sum;
}

} // namespace

void RunningStatsSum::add(std::span<const RunningStats> blocks, double fraction, std::span<const double> sums) {
    Worker worker{{}, {}, {sums.begin(), sums.end()}, fraction};
    for (const RunningStats& b : blocks) {
        worker.mean.insert(worker.mean.end(), b.mean, b.mean + b.channels);
        worker.variance.insert(worker.variance.end(), b.variance, b.variance + b.channels);
    }
    workers_.push_back(std::move(worker));
}

void RunningStatsSum::finish(Group& group, std::span<const RunningStats> blocks, std::span<double> sums) {
    RG_CHECK(std::ssize(workers_) == group.workers(group.rank()), "RunningStatsSum: expected the statistics of ",
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
        size_t c = 0;
        for (const RunningStats& b : blocks)
            for (int64_t i = 0; i < b.channels; ++i, ++c) {
                const double difference = worker.mean[c] - mean[c];
                if (difference != 0) row[c] += difference * difference / b.momentum;
            }
        weigh(std::span(row), worker.fraction);
    }
    workers_.clear();
    const std::vector<double> variance = sum_rows(group, std::move(rows), "running variances");
    size_t c = 0;
    for (const RunningStats& b : blocks)
        for (int64_t i = 0; i < b.channels; ++i, ++c) {
            b.mean[i] = float(mean[c]);
            b.variance[i] = float(variance[c]);
        }
}

} // namespace rg::par
