// The element-wise ops: activations, sums, conversions, copies, dropout.
#pragma once

#include "ringgrad/core/ops/norm.h"

namespace rg {

Tensor relu(const Tensor& x);
/// Returns x * P(X <= x) for a standard normal X (Hendrycks and Gimpel, 2016). Uses the error function, and not the
/// approximation by tanh.
Tensor gelu(const Tensor& x);
Tensor add(const Tensor& a, const Tensor& b);

/// Returns x times a constant.
Tensor scale(const Tensor& x, float factor);
/// Returns x times a scalar tensor, which is f32, or f64 if x is f64. Gradients also flow to the factor.
Tensor scale(const Tensor& x, const Tensor& factor);

/// Converts each element. Returns x itself if it has that type already.
Tensor cast(const Tensor& x, DType to);

/// Returns a copy of the elements [begin, begin + shape.numel()) of x, counted in the order of x's memory: image i of
/// [n h w c] begins at i * h * w * c. Gradients flow through this op, but not through the view that Tensor::slice()
/// makes. The backward pass of each call fills a gradient of the size of x.
Tensor slice(const Tensor& x, int64_t begin, const Shape& shape);

/// Sets elements to zero with this probability, and divides the others by 1 - probability (inverted dropout, Srivastava
/// et al., 2014). The seed, i32 [2], and `stream` determine which elements become zero. Use another seed in each step.
/// Layers that share a seed need different values of `stream`, which must be below 2^24.
Tensor dropout(const Tensor& x, float probability, const Tensor& seed, uint32_t stream = 0);
/// Does the same with a number as the seed. Throws Error in a traced function: every replay would drop the same
/// elements.
Tensor dropout(const Tensor& x, float probability, uint64_t seed, uint32_t stream = 0);
/// Returns a seed in the form that dropout() takes: i32 [2], in host memory.
Tensor seed_tensor(uint64_t seed);

// ---- rows of the op table ----

#define RG_ELEMENT_OPS(X)                                                                                              \
    X(relu) X(relu_grad) X(gelu) X(gelu_grad) X(add) X(scale) X(scale_grad) X(cast) X(slice) X(slice_grad) X(dropout)
RG_ELEMENT_OPS(RG_DECLARE_OP)

struct ReluOp {
    enum In { x };
};
/// Computes dx: dy where y > 0 or y is NaN, else 0. If `a` and its statistics are defined, also computes a_dgamma and
/// a_dbeta, the sums of dx that BatchNormSumsOp defines. Does the same for b. A plan uses this for the backward pass of
/// relu(batch_norm(a) + batch_norm(b)).
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
    bool relu = false;                  // true: applies ReLU to the sum
    BatchNorm a_norm = {}, b_norm = {}; // with a_stats or b_stats: normalises a or b on load, without ReLU
};
struct ScaleOp {
    enum In { x, factor };
    float constant = 1; // used if `factor` is undefined
};
/// Computes the gradient of the factor: the sum of dy * x.
struct ScaleGradOp {
    enum In { dy, x };
};
struct CastOp {
    enum In { x };
    DType to = DType::f32;
};
/// Copies `count` elements of x, which has one extent, from element `begin` on.
struct SliceOp {
    enum In { x };
    int64_t begin = 0, count = 0;
};
/// Computes dx, which has `count` elements: dy from element `begin` on, and zeros elsewhere.
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
