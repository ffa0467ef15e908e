// Element-wise ops: activations, sums, conversions, copies, dropout.
#pragma once

#include "core/ops/norm.h"

namespace rg {

Tensor relu(const Tensor& x);
/// x * P(X <= x) for a standard normal X (Hendrycks and Gimpel, 2016), by the error function, without approximation.
Tensor gelu(const Tensor& x);
Tensor add(const Tensor& a, const Tensor& b);

/// x times a constant.
Tensor scale(const Tensor& x, float factor);
/// x times a scalar tensor, f32 (f64 beside f64). Gradients also flow to the factor.
Tensor scale(const Tensor& x, const Tensor& factor);

/// Converts each element. Returns x itself if it has that type already.
Tensor cast(const Tensor& x, DType to);

/// Copies elements [begin, begin + shape.numel()) of x, in the order of its memory: image i of [n h w c] begins at
/// i * h * w * c. Gradients flow through it, but not through the view that Tensor::slice() makes. The gradient of each
/// call has the size of x.
Tensor slice(const Tensor& x, int64_t begin, const Shape& shape);

/// Inverted dropout (Srivastava et al., 2014). The seed, i32 [2], determines the mask. Use another seed in each step.
/// Layers that share a seed need different values of `stream`, below 2^24.
Tensor dropout(const Tensor& x, float probability, const Tensor& seed, uint32_t stream = 0);
/// The same with a number as the seed. Throws Error in a traced function: every replay would use the same mask.
Tensor dropout(const Tensor& x, float probability, uint64_t seed, uint32_t stream = 0);
/// Returns a seed as dropout reads it: i32 [2], in host memory.
Tensor seed_tensor(uint64_t seed);

// ---- rows of the op table ----

#define RG_ELEMENT_OPS(X)                                                                                               \
    X(relu) X(relu_grad) X(gelu) X(gelu_grad) X(add) X(scale) X(scale_grad) X(cast) X(slice) X(slice_grad) X(dropout)
RG_ELEMENT_OPS(RG_DECLARE_OP)

struct ReluOp {
    enum In { x };
};
/// dx = dy where y > 0. Given a and its statistics, also computes a_dgamma and a_dbeta: the sums of dx that
/// BatchNormSumsOp defines. The same for b: the gradient of relu(batch_norm(a) + batch_norm(b)).
struct ReluGradOp {
    enum In { dy, y, a, a_stats, a_gamma, a_beta, b, b_stats, b_gamma, b_beta };
    enum Out { dx, a_dgamma, a_dbeta, b_dgamma, b_dbeta };
    BatchNorm a_norm = {}, b_norm = {};
};
struct GeluOp {
    enum In { x };
};
struct GeluGradOp {
    enum In { dy, x };
};
struct AddOp {
    enum In { a, b, a_stats, a_gamma, a_beta, b_stats, b_gamma, b_beta };
    bool relu = false;
    BatchNorm a_norm = {}, b_norm = {}; // with the statistics of an operand: normalises it on load; no ReLU
};
struct ScaleOp {
    enum In { x, factor };
    float constant = 1; // used if `factor` is undefined
};
/// The gradient of the factor: the sum of dy * x.
struct ScaleGradOp {
    enum In { dy, x };
};
struct CastOp {
    enum In { x };
    DType to = DType::f32;
};
/// x is flat. The gradient writes dy into zeros of `count` elements, from `begin` on.
struct SliceOp {
    enum In { x };
    int64_t begin = 0, count = 0;
};
struct SliceGradOp {
    enum In { dy };
    int64_t begin = 0, count = 0;
};
struct DropoutOp {
    enum In { x, seed };
    float probability = 0;
    uint32_t stream = 0;
};

} // namespace rg
