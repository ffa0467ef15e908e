// Reverse-mode automatic differentiation (Griewank and Walther, "Evaluating Derivatives", 2008, section 3.2).
//
// While a Tape exists on a thread, every op appends a node: the op, its attributes, and the inputs and outputs that its
// backward rule reads (OpRow::saves). gradients() walks the nodes backwards once. It frees each node after its backward
// rule, so the memory of activations shrinks during the walk. The first contribution to a gradient is assigned and
// later ones are added, so the caller need not clear the gradients.
//
// Gradients do not flow through copies (Tensor::clone(), to(), to_host(), to_device(), copy_from()), through views of a
// part (Tensor::slice()) or through ops without a backward rule. gradients() throws Error if a gradient would have to.
// Values that are computed under NoTape are constants. Tapes nest: the innermost tape records the ops, until its
// gradients() is called. An outer tape treats the ops of an inner tape like ops without a backward rule. But
// gradients() records nothing, so the gradients of an inner tape are constants for an outer one: there are no second
// derivatives.
//
// If a saved value is overwritten before gradients(), the gradients are wrong, and nothing detects this.
#pragma once

#include "core/op.h"
#include "core/parameters.h"
#include "core/scope.h"

#include <vector>

namespace rg {

class Tape final : public Recorder {
public:
    struct Node {
        const char* name;              // name of the op, or of the function that made a copy
        const char* instead = nullptr; // for a copy or an op of an inner tape: a hint for errors (see Recorder)
        void (*backward)(BackwardContext&) = nullptr;
        Attrs attrs = {};
        uint32_t saved = 0; // bits of OpRow::saves
        std::array<Tensor, kMaxInputs> in = {};
        std::array<Tensor, kMaxOutputs> out = {};
    };

    /// Returns the tape that records the ops of this thread: the innermost one whose gradients() has not been called.
    /// Returns null if there is none since the newest NoTape.
    static Tape* active();
    void record(Op op, const Attrs& attrs, std::span<const Tensor> in, std::span<const Tensor> out) override;
    void record_copy(const char* call, const char* instead, const Tensor& from, const Tensor& to) override;

    /// Writes the gradients of `loss` (one element) with respect to `tensors` to `destinations`, which have the same
    /// shapes and types. A tensor that the loss does not depend on gets zeros. Throws Error if the loss depends on none
    /// of the tensors, or on one of them through a copy, a view of a part or an op without a backward rule. A path that
    /// another gradient includes (BackwardContext::covers()), such as that through a batch norm's statistics, is
    /// allowed. Also throws if one of the tensors comes from another through such a copy, view or op, or if two of the
    /// tensors and destinations share memory, or a destination and a value that an op saved. Call it once: afterwards
    /// the tape records nothing.
    void gradients(const Tensor& loss, std::span<const Tensor> tensors, std::span<const Tensor> destinations);
    /// Writes the gradients of `loss` with respect to all parameters whose rate is not 0 to their
    /// Parameters::Entry::gradient. Throws Error if another thread computes these gradients at the same time.
    void gradients(const Tensor& loss, const Parameters& parameters);

private:
    void push(Node node);
    /// Returns the last tape before this one on this thread whose gradients() has not been called. Returns null if
    /// there is none, or if a NoTape lies between.
    Tape* outer() const;

    std::vector<Node> nodes_;
    bool consumed_ = false;
    Setting<Recorder*> tape_{Scope::current().tape, this};
};

/// While a NoTape exists, the tapes that were made before it on this thread record nothing. Use a NoTape to evaluate a
/// network while a Tape exists.
class NoTape {
    Setting<Recorder*> tape_{Scope::current().tape, nullptr};
};

} // namespace rg
