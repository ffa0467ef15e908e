// Batch normalization (Ioffe and Szegedy, 2015), and its statistics.
#pragma once

#include "core/op.h"

#include <vector>

namespace rg {

/// y = gamma * (x - mean) / sqrt(variance + epsilon) + beta, then ReLU if set. Also an attribute of the ops that
/// normalise an operand or their result.
struct BatchNorm {
    float epsilon = 1e-5f;
    bool relu = false;
    bool frozen = false; // true: the statistics are constants (evaluation); false: they are those of x
    bool operator==(const BatchNorm&) const = default;
};

/// x [n h w c], stats [2 c] (mean and biased variance), gamma [c], beta [c] -> the shape of x. In training, pass
/// channel_stats(x): the gradient takes the dependence of the statistics on x into account. In evaluation, pass the
/// running statistics, with frozen. Under Context::sync, training statistics are those of all ranks.
Tensor batch_norm(const Tensor& x, const Tensor& stats, const Tensor& gamma, const Tensor& beta,
                  BatchNorm options = {});

/// Mean (row 0) and biased variance (row 1) of each channel: x [n h w c] -> [2 c].
Tensor channel_stats(const Tensor& x);

/// Statistics over all ranks of Context::sync, weighted by their fractions. Returns `stats` if there is no group.
Tensor combine_stats(const Tensor& stats);

/// running = (1 - momentum) * running + momentum * stats, with the variance unbiased for images * pixels values per
/// channel (as PyTorch does); under Context::sync, for the images of all ranks. Both [2 c]; in place.
void update_running(const Tensor& running, const Tensor& stats, int64_t images, int64_t pixels, float momentum);

// ---- rows of the op table ----

#define RG_NORM_OPS(X)                                                                                                 \
    X(channel_stats) X(rank_stats) X(batch_norm) X(batch_norm_sums) X(rank_sums) X(batch_norm_grad) X(running_update)
RG_NORM_OPS(RG_DECLARE_OP)

struct ChannelStatsOp {
    enum In { x };
};
/// Statistics over the ranks.
struct RankStatsOp {
    enum In { stats };
};
struct BatchNormOp {
    enum In { x, stats, gamma, beta };
    BatchNorm norm;
};
/// dgamma and dbeta, each [c].
struct BatchNormSumsOp {
    enum In { dy, x, stats, gamma, beta };
    enum Out { dgamma, dbeta };
    BatchNorm norm;
};
/// dgamma (row 0) and dbeta (row 1) over the ranks: [2 c].
struct RankSumsOp {
    enum In { dgamma, dbeta };
};
/// dx, from the sums of RankSumsOp.
struct BatchNormGradOp {
    enum In { dy, x, stats, gamma, beta, sums };
    BatchNorm norm;
};
struct RunningUpdateOp {
    enum In { running, stats };
    int64_t images = 0, pixels = 0;
    float momentum = 0;
};

// ---- reference, for the ops that include a batch norm ----

namespace ref {

/// Returns the mean and the biased variance of each channel, in two passes over x.
std::vector<double> moments(const std::vector<double>& x, size_t channels);

/// Returns the batch norm of x, where `norm` = {stats, gamma, beta}. Returns x if these are undefined.
Tensor normalised(const Tensor& x, std::span<const Tensor> norm, const BatchNorm& attrs);

/// Computes the sums that BatchNormSumsOp defines.
void norm_sums(const Tensor& dy, const Tensor& x, std::span<const Tensor> norm, const BatchNorm& attrs,
               const Tensor& dgamma, const Tensor& dbeta);

/// Computes dx of BatchNormGradOp.
void norm_grad(const Tensor& dy, const Tensor& x, std::span<const Tensor> norm, const Tensor& sums,
               const BatchNorm& attrs, const Tensor& dx);

} // namespace ref

} // namespace rg
