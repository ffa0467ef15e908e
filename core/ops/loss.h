// Softmax and the losses.
#pragma once

#include "core/op.h"

namespace rg {

/// Over the last extent: [n k] -> [n k].
Tensor softmax(const Tensor& x);

/// Mean over the batch of -log softmax(logits)[label], with label smoothing (Szegedy et al., 2016); a scalar.
/// Logits [n k], labels i32 [n].
Tensor cross_entropy(const Tensor& logits, const Tensor& labels, float smoothing = 0);

/// Mean of the squared differences; a scalar.
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
/// Without dloss, writes the probabilities, for CrossEntropyGradOp. With it, writes dlogits instead.
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
