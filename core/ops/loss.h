// The ops of softmax and of the losses.
#pragma once

#include "ringgrad/core/op.h"

namespace rg {

/// Returns the softmax of each row of x [n k].
Tensor softmax(const Tensor& x);

/// Returns the mean over the batch of -log softmax(logits)[label], with label smoothing (Szegedy et al., 2016), as a
/// scalar. Shapes: logits [n k], labels i32 [n].
Tensor cross_entropy(const Tensor& logits, const Tensor& labels, float smoothing = 0);

/// Returns the mean of the squared differences, as a scalar.
Tensor mse_loss(const Tensor& prediction, const Tensor& target);

// ---- rows of the op table ----

#define RG_LOSS_OPS(X)                                                                                                 \
    X(softmax) X(softmax_grad) X(cross_entropy) X(cross_entropy_grad) X(mse_loss) X(mse_loss_grad)
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
    enum In { logits, labels, dloss };
    enum Out { loss, probabilities, dlogits };
    float smoothing = 0;
};
struct CrossEntropyGradOp {
    enum In { probabilities, labels, dloss };
    float smoothing = 0;
};
struct MseLossOp {
    enum In { prediction, target };
};
struct MseLossGradOp {
    enum In { prediction, target, dloss };
};

} // namespace rg
