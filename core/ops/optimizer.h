// The ops that update the parameters, and the op that finds NaN and infinity.
//
// Per-step values (learning rate, step number) may be tensors, so that a replay of a traced function picks up new ones.
// Outside of a trace they may be plain numbers.
#pragma once

#include "ringgrad/core/op.h"

namespace rg {

/// Options of SGD with momentum, as PyTorch defines it: g += weight_decay * p; v = momentum * v + g;
/// p -= lr * (nesterov ? g + momentum * v : v). The update changes the flat buffers of p and v in place, but not g.
struct Sgdm {
    float lr = 0.1f, momentum = 0.9f, weight_decay = 0;
    bool nesterov = false;
};
void sgdm_update(const Tensor& parameters, const Tensor& velocity, const Tensor& gradients, const Sgdm& options);
/// Does the same with the learning rate from a tensor, f32 [1]. Does nothing if `non_finite_at`, a result of
/// first_non_finite(), is an index (not -1).
void sgdm_update(const Tensor& parameters, const Tensor& velocity, const Tensor& gradients, const Sgdm& options,
                 const Tensor& lr, const Tensor& non_finite_at = {});

/// Options of Adam (Kingma and Ba, 2015), as PyTorch defines it, where t is the number of the step, counted from 1:
/// g += weight_decay * p; m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g^2;
/// p -= lr * m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon). The update changes the flat buffers of p, m and
/// v in place, but not g. m and v must be zero before the first step.
struct Adam {
    float lr = 1e-3f;
    double beta1 = 0.9, beta2 = 0.999; // double, since in float 1 - beta would lose digits
    float epsilon = 1e-8f, weight_decay = 0;
};
void adam_update(const Tensor& parameters, const Tensor& m, const Tensor& v, const Tensor& gradients,
                 const Adam& options, int64_t step);
/// Does the same with the learning rate and t from a tensor, f32 [2]. Does nothing if `non_finite_at`, a result of
/// first_non_finite(), is an index (not -1).
void adam_update(const Tensor& parameters, const Tensor& m, const Tensor& v, const Tensor& gradients,
                 const Adam& options, const Tensor& lr_and_step, const Tensor& non_finite_at = {});

/// Returns the index of the first NaN or infinity in a flat buffer, or -1 if there is none. The result is an i32
/// scalar, in the tensor `non_finite_at` if that is given. If a loss is given, it is checked last, and its index is
/// `values.numel()`.
Tensor first_non_finite(const Tensor& values, const Tensor& loss = {}, const Tensor& non_finite_at = {});

// ---- rows of the op table ----

#define RG_OPTIMIZER_OPS(X) X(sgdm_update) X(adam_update) X(first_non_finite)
RG_OPTIMIZER_OPS(RG_DECLARE_OP)

struct SgdmUpdateOp {
    enum In { parameters, velocity, gradients, lr, non_finite_at };
    float momentum = 0, weight_decay = 0;
    bool nesterov = false;
};
struct AdamUpdateOp {
    enum In { parameters, m, v, gradients, lr_and_step, non_finite_at };
    double beta1 = 0, beta2 = 0;
    float epsilon = 0, weight_decay = 0;
};
struct FirstNonFiniteOp {
    enum In { values, loss };
};
/// Returns true if `position`, a result of first_non_finite() in host memory, is an index. Returns false if it is -1,
/// or if the tensor is undefined because the check did not run.
inline bool found_non_finite(const Tensor& position) { return position.defined() && *position.data<int32_t>() >= 0; }

} // namespace rg
