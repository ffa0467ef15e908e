// The ops of softmax and of the losses. In shapes, n is the number of samples and k the number of classes.
#pragma once

#include "core/op.h"

namespace rg {

/// Returns the softmax of each row of x [n k].
Tensor softmax(const Tensor& x);

/// Returns the mean over the batch of -log softmax(logits)[label], with label smoothing (Szegedy et al., 2016), as a
/// scalar. The loss of an empty batch is 0. Shapes: logits [n k], labels i32 [n].
///
/// With class weights [k], of the type of the logits, the term of class j in the loss of a sample counts weights[j]
/// times, and the mean divides by the sum of weights[label] over the batch, as in PyTorch. If that sum is 0 and the
/// batch is not empty, the loss is NaN or, with smoothing, may be infinite. Ranks that train together each divide by
/// the sum over their own samples.
///
/// With sample weights [n], of the type of the logits, the loss of sample i counts sample_weights[i] times, and the
/// mean always divides by n. No gradient flows to weights.
Tensor cross_entropy(const Tensor& logits, const Tensor& labels, float smoothing = 0, const Tensor& weights = {},
                     const Tensor& sample_weights = {});

/// Returns the mean over all elements of -t log(p) - (1 - t) log(1 - p) as a scalar, where p = 1 / (1 + exp(-logit))
/// and t is the target. Takes logits instead of p because log(p) and log(1 - p) of a rounded p would lose all digits
/// where p is near 0 or 1. The targets have the shape and type of the logits and lie in [0, 1]. No gradient flows to
/// them.
Tensor binary_cross_entropy(const Tensor& logits, const Tensor& targets);

/// Returns the mean of the squared differences over all elements, as a scalar. Gradients flow to both arguments.
Tensor mse_loss(const Tensor& prediction, const Tensor& target);

// ---- ops: their inputs, results and attributes ----

#define RG_LOSS_OPS(X)                                                                                                 \
    X(softmax) X(softmax_grad) X(cross_entropy) X(cross_entropy_grad)                                                  \
    X(binary_cross_entropy) X(binary_cross_entropy_grad) X(mse_loss) X(mse_loss_grad)
RG_LOSS_OPS(RG_DECLARE_OP)

struct SoftmaxOp {
    enum In { x };
};
struct SoftmaxGradOp {
    enum In { dy, y };
};
/// Computes the loss. If dloss is undefined, also computes the probabilities, which CrossEntropyGradOp reads. If dloss
/// is defined, computes dlogits instead of the probabilities.
struct CrossEntropyOp {
    enum In { logits, labels, weights, sample_weights, dloss };
    enum Out { loss, probabilities, dlogits };
    float smoothing = 0;
};
struct CrossEntropyGradOp {
    enum In { probabilities, labels, weights, sample_weights, dloss };
    float smoothing = 0;
};
struct BinaryCrossEntropyOp {
    enum In { logits, targets };
};
struct BinaryCrossEntropyGradOp {
    enum In { logits, targets, dloss };
};
struct MseLossOp {
    enum In { prediction, target };
};
struct MseLossGradOp {
    enum In { prediction, target, dloss };
};

} // namespace rg
