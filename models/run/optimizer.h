// The optimizer of a training: SGD with momentum, Adam, AdamW or Muon, with clipping, lookahead and an average of the
// weights.
#pragma once

#include "core/ops.h"
#include "core/parameters.h"
#include "core/safetensors.h"

namespace rg {

/// The flat buffers of the optimizer, such as "optimizer.velocity": one value for each of Parameters::values(), or for
/// each of Parameters::all().
using OptimizerState = std::vector<NamedTensor>;

/// The formulas are in core/ops/optimizer.h.
/// muon (Jordan, 2024; its program airbench94_muon) treats filters [k r s c] before a batch norm
/// (Parameters::Entry::scale_free) in its own way, and all else like sgd. Each step scales these filters to the norm
/// sqrt(k), and then subtracts lr * orthogonalised(the step of sgd), without weight decay. So a constant factor of
/// their gradients has no effect.
enum class OptimizerKind : uint8_t { sgd, adam, adamw, muon };

/// The learning rate is not an option: see Optimizer::set().
struct OptimizerOptions {
    OptimizerKind kind = OptimizerKind::sgd;
    double momentum = 0.9; // of sgd and muon
    bool nesterov = false; // of sgd and muon
    double weight_decay = 0;
    bool decay_biases = true; // false: only parameters with two or more extents decay, so no bias and no batch norm
    double max_norm = 0;      // limit for the norm of all gradients together; 0: no limit
    /// Weight d of the old value in a moving average of the weights and of batch norm's running statistics, for tests
    /// and models; 0: none. After step s, the weight is min(d, (1 + s) / (10 + s)), so that a short training does not
    /// average over its initial values.
    double average = 0;

    /// Lookahead (Zhang et al., 2019), with a weight that rises during the training (Jordan, arXiv:2404.00498). After
    /// every 5th step s of S, slow = w * slow + (1 - w) * weights with w = lookahead * (s / S)^3. Then, and after the
    /// last step, the weights are set to `slow`. Batch norm's running statistics count as weights here. 0: no
    /// lookahead.
    double lookahead = 0;

    /// Returns true for sgd and muon. These keep one buffer, the velocity; adam and adamw keep two.
    bool has_momentum() const { return kind == OptimizerKind::sgd || kind == OptimizerKind::muon; }
    /// Returns the number of buffers of the optimizer, with those of the average and of lookahead.
    int64_t buffers() const { return (has_momentum() ? 1 : 2) + (average > 0) + (lookahead > 0); }
};

/// Updates flat parameters. Per-step values are in tensors, so that a replay picks up new ones.
class Optimizer {
public:
    /// Takes each entry's factors for learning rate and weight decay, and its number of epochs, from `parameters`,
    /// which must outlive this. Set them before. Throws Error if muon shall clip gradients, or shall stop to change a
    /// filter tensor after some epochs.
    Optimizer(const Parameters& parameters, const OptimizerOptions& options);

    /// Call this before the steps of an epoch, counted from 1. Updates no longer change values whose Entry::epochs have
    /// passed; lookahead still does.
    void begin_epoch(int64_t epoch);
    /// Sets the learning rate and the number of the step, counted from 1. Call it before each update(). Throws Error
    /// unless the rate is finite and not negative, and the step is at least 1.
    void set(double lr, int64_t step);
    /// Updates the parameters and the momenta. Changes none of these if a gradient or the loss is not finite. Sets
    /// non_finite_at(). Throws Error if set() was never called. On several ranks, gradients and loss are those of the
    /// whole mini-batch, and so the same on all.
    void update(const Tensor& loss);

    /// Updates the average after step `step` of `steps`, and applies the lookahead if it is due. Call it after each
    /// step that has changed the parameters. Does nothing without an average and lookahead.
    void end_step(int64_t step, int64_t steps);

    /// Returns the optimizer's flat buffers, which a checkpoint holds.
    const OptimizerState& state() const { return state_; }
    /// Returns a scalar with the result of first_non_finite() in the last update().
    const Tensor& non_finite_at() const { return non_finite_at_; }

    /// Sets the average and the slow weights of lookahead, if there are any, to the current weights.
    void reset_averages();
    /// Calls `use`. Meanwhile, parameters and running statistics have their averages, if there is an average.
    template <class Use>
    void with_average(const Use& use) {
        exchange_average();
        try {
            use();
        } catch (...) {
            exchange_average();
            throw;
        }
        exchange_average();
    }

private:
    void exchange_average();
    bool is_muon_filter(const Parameters::Entry& entry) const;
    Tensor rates_in(int64_t epoch) const;
    void update_muon_filters();

    const Parameters& parameters_;
    const OptimizerOptions options_;
    OptimizerState state_;
    Tensor average_, slow_; // of Parameters::all(); average_ is undefined without an average, slow_ without lookahead
    bool is_set_ = false;
    std::vector<const Parameters::Entry*> muon_filters_; // those that muon changes in its own way
    const Tensor rate_and_step_, next_rate_and_step_ = Tensor::empty_on_host({2});
    const Tensor non_finite_at_ = Tensor::zeros({}, DType::i32);
    UpdateInputs inputs_;
    int64_t rates_epoch_ = Parameters::Entry::kAllEpochs; // inputs_.rates are those of this epoch
};

} // namespace rg
