// Reverse-mode automatic differentiation (Griewank and Walther, "Evaluating Derivatives", 2008, section 3.2).
//
// While a Tape exists on a thread, every op appends a node: the op, its attributes, and those inputs and outputs that
// its row says its backward rule reads. gradients() walks the nodes backwards once and gives each up as soon as it is
// done with it, so activations are freed as the walk goes. The first contribution to a gradient is assigned, later
// ones are added: no gradient is ever cleared.
//
// Copies that are no ops (Tensor::clone(), to(), to_host(), copy_from()), views (Tensor::slice()) and ops without a
// backward rule are not differentiated. That is no error as long as no gradient has to flow through one of them: then
// gradients() throws. What is made under NoTape is a constant. Tapes nest: ops are recorded by the innermost, and
// gradients of an outer one that would have to flow through them are an error, too.
//
// A value that is written over between its use and gradients() gives wrong gradients, which nothing detects.
#pragma once

#include "core/op.h"
#include "core/scope.h"

#include <vector>

namespace rg {

class Tape final : public Recorder {
public:
    Tape();
    ~Tape();
    Tape(const Tape&) = delete;
    Tape& operator=(const Tape&) = delete;

    struct Node {
        const char* name;              // of the op, or of the call that copies
        const char* instead = nullptr; // of a call that copies: what to use where gradients are wanted
        void (*backward)(Backward&) = nullptr;
        Attrs attrs = {};
        std::array<Tensor, kMaxInputs> in = {};
        std::array<Tensor, kMaxOutputs> out = {};
    };

    /// The innermost tape of this thread whose gradients were not taken yet, or null: then nothing is recorded.
    static Tape* active();
    void record(Op op, const Attrs& attrs, std::span<const Tensor> in, std::span<const Tensor> out) override;
    void record_copy(const char* call, const char* instead, const Tensor& from, const Tensor& to) override;

    /// Derivatives of `loss` (one element) with respect to `of`, written to `into` (same shapes and types, in any
    /// memory). A tensor that the loss does not depend on gets zeros. Throws if the loss depends on none of them, or on
    /// one of them through a copy or an op that is not differentiated. Consumes the tape: it records nothing more, and
    /// a second call throws.
    void gradients(const Tensor& loss, std::span<const Tensor> of, std::span<const Tensor> into);

private:
    void push(Node node);
    /// The tape that records what this one no longer does, or null.
    Tape* outer() const;

    std::vector<Node> nodes_;
    bool consumed_ = false;
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
    Recorder* before_;
};

} // namespace rg
