// Defines RandomProgram: a function of images that computes randomly drawn ops, for tests of plans.
//
// The programs combine what real ones do: convolutions, batch norms with both kinds of statistics, activations, sums,
// pooling, concatenation, layers that share parameters, frozen parameters, and writes of parameters, running statistics
// and intermediates between the ops that read them. They ask for gradients of parameters, inputs and intermediates, in
// memory from outside and in new tensors. Each program is a function of its seed. Its values are of the order of 1, so
// that rounding errors stay small.
#pragma once

#include "core/tape.h"

#include <functional>
#include <span>
#include <vector>

namespace rg {

class RandomProgram {
public:
    /// Draws the parameters, on the context's device. `type` is the type of activations.
    RandomProgram(uint64_t seed, DType type);

    /// Returns inputs for operator(). There are two shapes: those with an odd `number`, and the others.
    std::vector<Tensor> inputs(int number) const;
    /// Predicts, or computes a loss and gradients, and sometimes updates the parameters. Returns its results.
    std::vector<Tensor> operator()(std::span<const Tensor> in, bool training) const;
    /// Returns a copy of all that operator() writes: parameters, gradients, velocity and running statistics.
    std::vector<Tensor> state() const;

private:
    DType precise() const { return type_ == DType::f64 ? DType::f64 : DType::f32; } // type of parameters and losses
    Tensor random(const Shape& shape, uint64_t number) const;
    /// Computes the gradients of parameters and, at random, of up to two of `values`. Returns some of those in new
    /// memory.
    std::vector<Tensor> gradients(Tape& tape, const Tensor& loss, const std::vector<Tensor>& values,
                                  const std::function<size_t(size_t)>& draw) const;

    uint64_t seed_;
    DType type_;
    int64_t channels_;
    mutable Parameters parameters_;
    std::vector<Tensor> filters_, gammas_, betas_, running_;
    Tensor wide_, narrow_, bias_, velocity_, rate_, noise_;
    Tensor given_; // memory from outside for the gradients of up to two activations
};

/// Runs the program of this seed four times, op by op or, if `traced`, by plans. The inputs have two shapes in turn.
/// Two runs train and two predict; the seed chooses which come first. Returns the results and the final state.
std::vector<Tensor> results_of_program(uint64_t seed, DType type, bool traced);

/// Runs the program op by op and traced, and compares the values. Returns "" if they agree: bit for bit if `tolerance`
/// is 0, else if the root mean square of each difference is at most `tolerance` times that of the values, or times 3e-3
/// if that is larger, and the same values are finite.
std::string plan_differs(uint64_t seed, DType type, double tolerance);

/// Returns the number of random programs to test: `usual`, or that of the environment variable RG_PROGRAMS.
uint64_t programs_to_test(uint64_t usual);

} // namespace rg
