// Runs ranks as threads that share batch statistics, and divides a batch among them.
#pragma once

#include "core/context.h"
#include "core/rng.h"
#include "core/tensor.h"

#include <barrier>
#include <cmath>
#include <thread>

namespace rg {

inline Tensor random_tensor(const Shape& shape, DType type, uint64_t seed) {
    const Tensor t = Tensor::empty_on_host(shape, DType::f64);
    Rng random(seed, Purpose::test);
    for (double& v : t.span<double>()) v = random.normal();
    return t.to(type);
}

inline Tensor random_labels(int64_t n, int64_t classes, uint64_t seed) {
    const Tensor t = Tensor::empty({n}, DType::i32);
    Rng random(seed, Purpose::test);
    for (int32_t& v : t.span<int32_t>()) v = int32_t(random.uniform_below(uint32_t(classes)));
    return t;
}

/// Returns a copy of the samples [begin, begin + count) of a batch.
inline Tensor part_of(const Tensor& batch, int64_t begin, int64_t count) {
    std::vector<int64_t> extents(batch.shape().extents().begin(), batch.shape().extents().end());
    const int64_t sample = batch.numel() / extents[0];
    extents[0] = count;
    return batch.slice(begin * sample, Shape(extents)).clone();
}

/// Returns the largest magnitude of an f64 tensor.
inline double largest_of(const Tensor& t) {
    double largest = 0;
    for (double v : t.span<double>()) largest = std::max(largest, std::abs(v));
    return largest;
}

inline Tensor weighted_sum(std::span<const Tensor> parts, std::span<const double> fractions) {
    const Tensor sum = Tensor::zeros(parts[0].shape(), DType::f64);
    for (size_t r = 0; r < parts.size(); ++r) {
        const Tensor wide = parts[r].to(DType::f64);
        for (int64_t i = 0; i < sum.numel(); ++i) sum.data<double>()[i] += fractions[r] * wide.data<double>()[i];
    }
    return sum;
}

/// Runs ranks as threads. Sums add the values in the order of the ranks, so all ranks get the same bits.
class SyncRanks {
public:
    /// Takes the number of samples of each rank.
    explicit SyncRanks(const std::vector<int64_t>& split)
        : parts_(split.size()), barrier_(std::ptrdiff_t(split.size())) {
        for (int64_t n : split) begins_.push_back(samples_), samples_ += n;
        for (int64_t n : split) fractions_.push_back(double(n) / double(samples_));
    }
    /// Returns each rank's fraction of the samples.
    const std::vector<double>& fractions() const { return fractions_; }
    /// Returns the first sample of a rank.
    int64_t begin(size_t rank) const { return begins_[rank]; }

    /// Calls f(rank) on a thread for each rank, in a context with the rank's SyncGroup.
    template <class F>
    void run(Backend backend, F f) {
        std::vector<std::jthread> threads;
        for (size_t rank = 0; rank < fractions_.size(); ++rank)
            threads.emplace_back([this, rank, backend, &f] {
                Group group(*this, rank);
                const Context context{.backend = backend, .sync = &group};
                const ContextScope scope(context);
                f(rank);
            });
    }

private:
    class Group final : public SyncGroup {
    public:
        Group(SyncRanks& all, size_t rank) : all_(all), rank_(rank) {
            fraction = all.fractions_[rank];
            samples = all.samples_;
        }
        void sum(std::span<double> values) override {
            all_.parts_[rank_].assign(values.begin(), values.end());
            all_.barrier_.arrive_and_wait();
            std::fill(values.begin(), values.end(), 0.0);
            for (const auto& part : all_.parts_)
                for (size_t i = 0; i < values.size(); ++i) values[i] += part[i];
            all_.barrier_.arrive_and_wait();
        }

    private:
        SyncRanks& all_;
        size_t rank_;
    };

    std::vector<double> fractions_;
    std::vector<int64_t> begins_;
    int64_t samples_ = 0;
    std::vector<std::vector<double>> parts_;
    std::barrier<> barrier_;
};

} // namespace rg
