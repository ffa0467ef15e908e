// The ops of batch normalization (Ioffe and Szegedy, 2015) and of its statistics, and of layer normalization. In
// shapes, n is the number of images or samples, h and w are pixels, and c is the number of channels.
#pragma once

#include "core/op.h"
#include "core/ops/activation.h"

#include <vector>

namespace rg {

/// Options of a batch norm y = gamma * (x - mean) / sqrt(variance + epsilon) + beta, followed by an activation.
struct BatchNorm {
    float epsilon = 1e-5f;
    Activation activation = {};
    bool frozen = false; // true: the statistics are constants (evaluation); false: the statistics are those of x
    bool operator==(const BatchNorm&) const = default;
};

/// Returns the batch norm of x [n h w c] with stats [2 c] (mean and biased variance), gamma [c] and beta [c]. In
/// training, pass combine_stats(channel_stats(x)) as stats: unless `frozen` is set, the gradient includes the part that
/// flows through the statistics to x, on all ranks of Context::sync. In evaluation, pass the running statistics, and
/// set `frozen`. Throws Error if the activation has exponentials; see activation().
Tensor batch_norm(const Tensor& x, const Tensor& stats, const Tensor& gamma, const Tensor& beta,
                  BatchNorm options = {});

/// Returns the mean (row 0) and the biased variance (row 1) of each channel of x [n h w c], as [2 c].
Tensor channel_stats(const Tensor& x);

/// Returns the statistics of the whole mini-batch over all ranks of Context::sync, from the statistics [2 c] of each
/// rank. Returns `stats` if Context::sync is not set.
Tensor combine_stats(const Tensor& stats);

/// Updates `running` [2 c] in place: running = (1 - momentum) * running + momentum * stats. Uses the unbiased variance,
/// as PyTorch does: the variance in `stats` [2 c] times N / (N - 1), if N = images * pixels is above 1. `pixels` is the
/// number of pixels in one image. If Context::sync is set, SyncGroup::samples takes the place of `images`.
void update_running(const Tensor& running, const Tensor& stats, int64_t images, int64_t pixels, float momentum);

/// Returns the layer norm gamma * (x - mean) / sqrt(variance + epsilon) + beta (Ba, Kiros and Hinton, 2016) of x [n c]
/// or [n h w c]. The mean and the biased variance are those of the c channels of one sample or pixel. Shapes: gamma
/// [c], beta [c].
Tensor layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, float epsilon = 1e-5f);

// ---- ops: their inputs, results and attributes ----
//
// In a plan for a device, the statistics or the sums of a batch norm may have 4 rows instead of 2 (core/fuse.cpp). The
// two additional rows hold coefficients that each reader would otherwise compute: after the statistics, scale and shift
// of y = scale * x + shift; after the sums, b and d of dx = scale * g + b * x + d.

#define RG_NORM_OPS(X)                                                                                                 \
    X(channel_stats)                                                                                                   \
    X(combine_stats) X(batch_norm) X(batch_norm_grad_sums) X(combine_sums) X(batch_norm_grad) X(running_update)        \
        X(layer_norm) X(layer_norm_grad)
RG_NORM_OPS(RG_DECLARE_OP)

/// A batch norm with its tensors. There is none if `stats` is undefined. Then gamma and beta may still be those of a
/// batch norm whose statistics the op computes; see Conv2dOp.
struct BatchNormTensors {
    const Tensor &stats, &gamma, &beta;
    const BatchNorm& options;
    explicit operator bool() const { return stats.defined(); }
};
/// A tensor that an op reads, and the batch norm that the op applies to it, if there is one.
struct Operand {
    const Tensor& x;
    BatchNormTensors norm;
};

/// The options of a batch norm that is part of an op, as an attribute of the op. Its statistics, gamma and beta are the
/// inputs kStats to kStats + 2 of the op. If it normalises an input, that is input kX.
template <size_t kStats, size_t kX = SIZE_MAX>
struct NormAt : BatchNorm {
    static constexpr size_t kEnd = kStats + 3; // number of the input after these three
    constexpr NormAt(const BatchNorm& options = {}) : BatchNorm(options) {}
    BatchNormTensors given(std::span<const Tensor> in) const {
        return {in[kStats], in[kStats + 1], in[kStats + 2], *this};
    }
    Operand operand(std::span<const Tensor> in) const requires(kX != SIZE_MAX) { return {in[kX], given(in)}; }
    void set(std::span<Tensor> in, const BatchNormTensors& norm) {
        BatchNorm::operator=(norm.options);
        in[kStats] = norm.stats, in[kStats + 1] = norm.gamma, in[kStats + 2] = norm.beta;
    }
    void set(std::span<Tensor> in, const Operand& operand) requires(kX != SIZE_MAX) {
        in[kX] = operand.x;
        set(in, operand.norm);
    }
};

struct ChannelStatsOp {
    enum In { x };
};
/// Combines the statistics of the ranks; see combine_stats().
struct CombineStatsOp {
    enum In { stats };
};
struct BatchNormOp {
    enum In { x, stats, gamma, beta };
    NormAt<stats, x> norm;
};
/// Computes two sums over the values of each channel: dgamma [c] is the sum of g * x^, and dbeta [c] is the sum of g.
/// x^ is (x - mean) / sqrt(variance + epsilon). g is dy times the derivative of the activation of the batch norm of x.
struct BatchNormGradSumsOp {
    enum In { dy, x, stats };
    enum Out { dgamma, dbeta };
    NormAt<stats, x> norm;
};
/// Computes [2 c]: the sums of dgamma (row 0) and dbeta (row 1) over the ranks, weighted by each rank's fraction of the
/// mini-batch (SyncGroup::fraction).
struct CombineSumsOp {
    enum In { dgamma, dbeta };
};
/// Computes dx of a batch norm. `sums` has the rows that CombineSumsOp defines. After fusion, another op may have
/// computed them. They are zeros if the statistics are constants.
struct BatchNormGradOp {
    enum In { dy, x, stats, sums = NormAt<stats>::kEnd };
    NormAt<stats, x> norm;
};
struct RunningUpdateOp {
    enum In { running, stats };
    int64_t images = 0, pixels = 0;
    float momentum = 0;
};
struct LayerNormOp {
    enum In { x, gamma, beta };
    float epsilon = 1e-5f;
};
struct LayerNormGradOp {
    enum In { dy, x, gamma };
    enum Out { dx, dgamma, dbeta };
    float epsilon = 1e-5f;
};

// ---- parts of the reference implementations of all ops that include a batch norm ----

namespace ref {

/// Returns the means of all channels, followed by their biased variances. Takes two passes over x.
std::vector<double> moments(const std::vector<double>& x, size_t channels);

/// Returns the batch norm of x, or x itself if there is none.
Tensor normalised(const Operand& x);

/// Computes the sums that BatchNormGradSumsOp defines.
void norm_sums(const Tensor& dy, const Operand& x, const Tensor& dgamma, const Tensor& dbeta);

/// Computes dx of BatchNormGradOp.
void norm_grad(const Tensor& dy, const Operand& x, const Tensor& sums, const Tensor& dx);

} // namespace ref

} // namespace rg
