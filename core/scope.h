// Scope: everything that is current on a thread. Ops look it up instead of taking it, so that a network reads as
// mathematics. Each field is set for the lifetime of an object: ContextScope, Tape, Trace, DryRun, LayerScope.
#pragma once

#include <span>
#include <string>

namespace rg {

class Attrs;
struct Context;
struct OpRow;
class Shape;
class Tensor;

/// Is told of the ops and copies of a thread. Tapes and traces are recorders.
class Recorder {
public:
    virtual void record(const OpRow* op, const Attrs& attrs, std::span<const Tensor> in, std::span<const Tensor> out) = 0;
    /// Records a copy, which is not an op. `instead` says what to use where gradients are wanted. Both texts outlive
    /// the recorder.
    virtual void record_copy(const char* call, const char* instead, const Tensor& from, const Tensor& to) = 0;

protected:
    ~Recorder() = default;
};

struct Scope {
    const Context* context = nullptr;   // null: a default one
    Recorder* tape = nullptr;           // records ops for gradients
    Recorder* trace = nullptr;          // records ops for a plan, instead of executing them
    int dry_runs = 0;                   // while positive, tensors have no memory and ops do not execute
    const std::string* layer = nullptr; // for the text of errors

    /// That of this thread.
    static Scope& current() {
        static thread_local Scope scope;
        return scope;
    }
};

} // namespace rg
