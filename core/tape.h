// Reverse-mode automatic differentiation (Griewank and Walther, "Evaluating Derivatives", 2008, section 3.2).
//
// While a Tape exists on a thread, every differentiable op appends a node: the op, its attributes, and those inputs
// and outputs that its row says its backward rule reads. gradients() walks the nodes backwards once and gives each
// up as soon as it is done with it, so activations are freed as the walk goes. The first contribution to a gradient
// is assigned, later ones are added: no gradient is ever cleared.
#pragma once

#include "core/op_table.h"

#include <vector>

namespace rg {

class Tape {
public:
    Tape();
    ~Tape();
    Tape(const Tape&) = delete;
    Tape& operator=(const Tape&) = delete;

    struct Node {
        Op op;
        Attrs attrs;
        std::array<Tensor, kMaxInputs> in;
        std::array<Tensor, kMaxOutputs> out;
    };

    /// The tape of this thread, or null: then nothing is recorded.
    static Tape* active();
    void record(Op op, const Attrs& attrs, std::span<const Tensor> in, std::span<const Tensor> out);

    /// Derivatives of `loss` (one element) with respect to `of`, written to `into` (same shapes, in any memory).
    /// A tensor that the loss does not depend on gets zeros. Consumes the tape.
    void gradients(const Tensor& loss, std::span<const Tensor> of, std::span<const Tensor> into);

private:
    std::vector<Node> nodes_;
    Tape* before_;
};

/// While one exists, nothing is recorded on this thread (evaluation inside of training).
class NoTape {
public:
    NoTape();
    ~NoTape();
    NoTape(const NoTape&) = delete;
    NoTape& operator=(const NoTape&) = delete;

private:
    Tape* before_;
};

} // namespace rg
