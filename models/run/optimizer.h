// The optimizer of a training: SGD with momentum, Adam or AdamW, with clipping and an average of the weights.
#pragma once

#include "ringgrad/core/ops.h"
#include "ringgrad/core/parameters.h"
#include "ringgrad/models/run/nan_guard.h"

namespace rg {

/// The formulas are in core/ops/optimizer.h. The learning rate comes with each step.
struct OptimizerOptions {
    enum class Kind : uint8_t { sgd, adam, adamw } kind = Kind::sgd;
    double momentum = 0.9; // of sgd
    bool nesterov = false; // of sgd
    double weight_decay = 0;
    bool decay_biases = true; // false: only parameters with two or more extents decay, so no bias and no batch norm
    double max_norm = 0;      // limit for the norm of all gradients together; 0: none
    double average = 0; // weight of the old value in a moving average of the weights, for tests and models; 0: none

    /// Returns the number of buffers of the optimizer, each as large as the parameters.
    int64_t buffers() const { return (kind == Kind::sgd ? 1 : 2) + (average > 0); }
};

/// Updates flat parameters. Per-step values are in tensors, so that a replay picks up new ones.
class Optimizer {
public:
    /// Takes the factors of learning rate and weight decay from the entries of `parameters`, which must outlive this.
    Optimizer(const Parameters& parameters, const OptimizerOptions& options);

    /// Sets the learning rate and the number of the step, counted from 1.
    void set(double lr, int64_t step) const;
    /// Updates the parameters from their gradients. Does nothing if a gradient or the loss is not finite.
    void update(const Tensor& loss) const;

    /// The flat buffers that a checkpoint holds.
    const OptimizerState& state() const { return state_; }
    /// The index of the value that was not finite, or -1; see first_non_finite().
    const Tensor& non_finite_at() const { return non_finite_at_; }

    /// Begins the average with the present parameters. Does nothing without an average.
    void start_average() const;
    /// Exchanges the parameters and their average. Does nothing without an average.
    void exchange_average() const;

private:
    const Parameters& parameters_;
    const OptimizerOptions options_;
    OptimizerState state_;
    Tensor average_; // undefined without an average
    const Tensor rate_and_step_, next_rate_and_step_ = Tensor::on_host({2});
    const Tensor non_finite_at_ = Tensor::zeros({}, DType::i32);
    UpdateInputs inputs_;
};

} // namespace rg
