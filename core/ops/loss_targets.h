// The targets of cross-entropy, for the reference implementation and the CPU kernel.
#pragma once

#include "core/tensor.h"

namespace rg {

/// Returns weight * value, and 0 for a weight of 0, whatever the value: a logit may be infinite.
inline double weighted(double weight, double value) { return weight == 0 ? 0 : weight * value; }

/// The targets of a mini-batch with k classes. Each class of a sample gets smoothing / k, and the label's class gets
/// 1 - smoothing in addition. Then each target is multiplied by the weight of its class, if `weights` is defined, and
/// by that of its sample. Weights are of type T.
template <class T>
struct Targets {
    Targets(const Tensor& labels_, int64_t k_, double smoothing_, const Tensor& weights_, const Tensor& sample_weights)
        : labels(labels_.span<int32_t>()),
          k(k_),
          smoothing(smoothing_),
          tensors{weights_, sample_weights},
          weights(weights_.defined() ? weights_.data<T>() : nullptr),
          of_samples(sample_weights.defined() ? sample_weights.data<T>() : nullptr) {
        for (int64_t j = 0; weights && j < k; ++j) all_weights += weights[j];
    }
    double weight(int64_t j) const { return weights ? weights[j] : 1; }
    double of_sample(int64_t n) const { return of_samples ? of_samples[n] : 1; }
    double of(int64_t n, int64_t j) const {
        return weight(j) * ((j == labels[size_t(n)] ? 1 - smoothing : 0) + smoothing / double(k)) * of_sample(n);
    }
    /// Returns the sum of the targets of sample n.
    double sum(int64_t n) const {
        const double of_classes =
            weights ? weight(labels[size_t(n)]) * (1 - smoothing) + smoothing / double(k) * all_weights : 1;
        return of_classes * of_sample(n);
    }
    /// Returns the divisor of the mean: the number of samples, or if there are class weights but no sample weights, the
    /// sum of the class weights of all labels.
    double samples() const {
        if (of_samples) return double(labels.size());
        double total = 0;
        for (const int32_t label : labels) total += weight(label);
        return total;
    }

    std::span<const int32_t> labels;
    int64_t k;
    double smoothing;
    Tensor tensors[2]; // keep the memory of the weights
    const T *weights, *of_samples;
    double all_weights = 0;
};

} // namespace rg
