// The ops that update the parameters, and the op that finds NaN and infinity.
//
// Per-step values (learning rate, step number) may be tensors, so that a replay of a traced function picks up new ones.
// Outside of a trace they may be plain numbers.
#pragma once

#include "core/op.h"

namespace rg {

/// Holds the tensors that an update may take in addition to the buffers of parameters, gradients and optimizer state.
/// Each may be undefined.
struct UpdateInputs {
    Tensor non_finite_at = {};      // result of first_non_finite(): if it is an index (not -1), the update does nothing
    Tensor norm = {};               // norm of the gradients, from first_non_finite(); needed if max_norm is above 0
    Tensor rates = {}, decays = {}; // f32, with the shape of the buffers: factors of lr and weight_decay per parameter
};

/// Options of SGD with momentum, as PyTorch defines it, for parameters p, gradients g and velocity v:
///   g *= min(1, max_norm / (norm + 1e-6))   if max_norm is above 0, where norm is the Euclidean norm of all gradients
///   g += weight_decay * p
///   v = momentum * v + g
///   p -= lr * (nesterov ? g + momentum * v : v)
/// The update changes the flat buffers of p and v in place, but not that of g. v must be zero before the first step.
struct SgdmOptions {
    float lr = 0.1f, momentum = 0.9f, weight_decay = 0;
    bool nesterov = false;
    float max_norm = 0;
};
void sgdm_update(const Tensor& parameters, const Tensor& velocity, const Tensor& gradients, const SgdmOptions& options);
/// Runs the update with the learning rate from the tensor `lr`, f32 [1], instead of options.lr.
void sgdm_update(const Tensor& parameters, const Tensor& velocity, const Tensor& gradients, const SgdmOptions& options,
                 const Tensor& lr, const UpdateInputs& inputs = {});

/// Options of Adam (Kingma and Ba, 2015), as PyTorch defines it. Before these formulas, max_norm limits g as in
/// SgdmOptions. t is the number of the step, counted from 1. If `decoupled` (AdamW; Loshchilov and Hutter, 2019), the
/// first formula is p *= 1 - lr * weight_decay instead.
///   g += weight_decay * p
///   m = beta1 * m + (1 - beta1) * g
///   v = beta2 * v + (1 - beta2) * g^2
///   p -= lr * m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon)
/// The update changes the flat buffers of p, m and v in place, but not that of g. m and v must be zero before the first
/// step. `lr_and_step`, f32 [2], holds lr and t.
struct AdamOptions {
    double beta1 = 0.9, beta2 = 0.999; // double, since in float 1 - beta would lose digits
    float epsilon = 1e-8f, weight_decay = 0;
    bool decoupled = false;
    float max_norm = 0;
};
void adam_update(const Tensor& parameters, const Tensor& m, const Tensor& v, const Tensor& gradients,
                 const AdamOptions& options, const Tensor& lr_and_step, const UpdateInputs& inputs = {});

/// Returns the matrix x [k m] with its singular values moved towards 1, by 3 steps of the Newton-Schulz iteration of
/// Jordan, "Muon: An optimizer for hidden layers in neural networks", 2024. A constant factor of x has no effect, up to
/// rounding. Most of the time goes into products with a square matrix of min(k, m) rows.
Tensor orthogonalised(const Tensor& x);

/// Returns x * length / (norm + 1e-7). `norm`, a scalar, is the Euclidean norm of x, from first_non_finite().
Tensor rescale(const Tensor& x, const Tensor& norm, float length);
/// Updates p in place: p = p * length / (norm + 1e-7) - rate * lr * step. `norm` is that of p, and lr is f32 [1]. Does
/// nothing if non_finite_at is defined and not -1.
void rescale_update(const Tensor& p, const Tensor& norm, float length, const Tensor& step, float rate, const Tensor& lr,
                    const Tensor& non_finite_at = {});

/// Updates a moving average of the parameters in place: average = keep * average + (1 - keep) * parameters.
void average_update(const Tensor& average, const Tensor& parameters, double keep);

/// Returns the index of the first NaN or infinity in the flat buffer `values`, or -1 if there is none. The result is an
/// i32 scalar; it is written to `non_finite_at` if that is given. If a loss is given, it is checked last, and its index
/// is `values.numel()`. If `norm`, a scalar, is given, the Euclidean norm of `values` is written to it.
Tensor first_non_finite(const Tensor& values, const Tensor& loss = {}, const Tensor& non_finite_at = {},
                        const Tensor& norm = {});

// ---- ops: their inputs, results and attributes ----

#define RG_OPTIMIZER_OPS(X) X(sgdm_update) X(adam_update) X(rescale) X(average_update) X(first_non_finite)
RG_OPTIMIZER_OPS(RG_DECLARE_OP)

struct SgdmUpdateOp {
    enum In { parameters, velocity, gradients, lr, non_finite_at, norm, rates, decays };
    float momentum = 0, weight_decay = 0;
    bool nesterov = false;
    float max_norm = 0;
};
struct AdamUpdateOp {
    enum In { parameters, m, v, gradients, lr_and_step, non_finite_at, norm, rates, decays };
    double beta1 = 0, beta2 = 0;
    float epsilon = 0, weight_decay = 0;
    bool decoupled = false;
    float max_norm = 0;
};
/// Computes x * length / (norm + 1e-7), minus rate * lr * step if `step` and lr are defined. If non_finite_at is
/// defined and not -1, the result is x.
struct RescaleOp {
    enum In { x, norm, step, lr, non_finite_at };
    float length = 1, rate = 1;
    static constexpr float kEpsilon = 1e-7f;
};
struct AverageUpdateOp {
    enum In { average, parameters };
    double keep = 0;
};
struct FirstNonFiniteOp {
    enum In { values, loss };
    enum Out { non_finite_at, norm };
    bool with_norm = false;
};
/// Returns the factor for the gradients that limits their norm to max_norm. If max_norm is 0, there is no limit.
template <class T>
constexpr T clip_factor(T norm, T max_norm) {
    const T factor = max_norm / (norm + T(1e-6));
    return max_norm > 0 && factor < 1 ? factor : 1;
}
/// Returns true if `position`, a result of first_non_finite() in host memory, is an index. Returns false if it is -1,
/// or if the tensor is undefined because the check did not run.
inline bool found_non_finite(const Tensor& position) { return position.defined() && *position.data<int32_t>() >= 0; }

} // namespace rg
