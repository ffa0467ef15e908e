// Losses that consist of the functions of core/ops/elements.h. Each returns a scalar, whose gradient the tape computes.
#pragma once

#include "ringgrad/core/ops.h"

namespace rg {

/// Returns the logarithm of softmax(x) of each row of x [n k]. The mean of a row under its softmax is at most log(k)
/// below the maximum, so the exponentials of the centred row do not overflow.
inline Tensor log_softmax(const Tensor& x) {
    const Tensor centred = x - sum(softmax(x) * x, {1});
    return centred - log(sum(exp(centred), {1}));
}

/// Returns the mean over n samples of the Kullback-Leibler divergence of softmax(logits) from soft labels, both [n k].
inline Tensor soft_label_loss(const Tensor& logits, const Tensor& labels) {
    const Tensor log_labels = log(labels + 1e-30f); // finite for a label of 0
    return mean(sum(labels * (log_labels - log_softmax(logits)), {1}));
}

/// Returns the mean of d^2 / 2 for differences d of at most delta, and of delta * (|d| - delta / 2) for larger ones
/// (Huber, 1964).
inline Tensor huber_loss(const Tensor& prediction, const Tensor& target, float delta = 1) {
    const Tensor d = prediction - target, beyond = relu(abs(d) - delta);
    return 0.5f * mean(square(d) - square(beyond));
}

/// Returns the mean of -(1 - p)^2 log(p), where p is the probability of the right one of two classes (focal loss, Lin
/// et al., 2017). The targets are 0 or 1 and have the shape of the logits.
inline Tensor focal_loss(const Tensor& logits, const Tensor& targets) {
    const Tensor z = logits * (1 - 2 * targets); // 1 - p is sigmoid(z)
    return mean(square(sigmoid(z)) * softplus(z));
}

/// Returns 1 minus the mean over the images [n h w c] of twice the overlap of prediction and mask, divided by the sum
/// of their sizes (Dice loss, Milletari et al., 2016). The masks are 0 or 1.
inline Tensor dice_loss(const Tensor& logits, const Tensor& masks) {
    const Tensor p = sigmoid(logits);
    const Tensor overlap = sum(p * masks, {1, 2, 3}), sizes = sum(p + masks, {1, 2, 3});
    return 1 - mean((2 * overlap + 1) / (sizes + 1)); // the 1 is for empty masks
}

} // namespace rg
