// Defines Scope: the state that all ops of a thread use without taking it as arguments, so that the code of a network
// looks like formulas. Objects of the classes ContextScope, Tape, NoTape, Trace, DryRun and LayerScope change fields of
// Scope for their lifetime. A plan sets `prepared` for each step.
#pragma once

#include <span>
#include <string>
#include <utility>

namespace rg {

class Attrs;
struct Context;
struct OpRow;
class PreparedMemory;
class Shape;
class Tensor;

/// Records the ops and copies of a thread. Tape and Trace implement it.
class Recorder {
public:
    virtual void record(const OpRow* op, const Attrs& attrs, std::span<const Tensor> in,
                        std::span<const Tensor> out) = 0;
    /// Records a copy, which is not an op. `call` names the function that copies. `instead` is a hint for errors, such
    /// as "use cast()", since gradients do not flow through copies. Both texts must outlive the recorder.
    virtual void record_copy(const char* call, const char* instead, const Tensor& from, const Tensor& to) = 0;

protected:
    ~Recorder() = default;
};

struct Scope {
    const Context* context = nullptr;   // null: the default context
    Recorder* tape = nullptr;           // records ops for gradients
    Recorder* trace = nullptr;          // records ops for a plan, instead of executing them
    int dry_runs = 0;                   // while positive, new tensors have no memory and ops do not execute
    PreparedMemory* prepared = nullptr; // where kernels keep values that they prepare for a plan's step; null: nowhere
    const std::string* layer = nullptr; // name of the layer for errors; null: none
    bool only_predicts = false;         // Parameters::allocate() draws no values, and makes no gradients

    /// Returns the scope of this thread.
    static Scope& current() {
        static thread_local Scope scope;
        return scope;
    }
};

/// Sets a variable to a value. The destructor restores the old value.
template <class T>
class Setting {
public:
    Setting(T& variable, T value) : variable_(variable), before_(std::exchange(variable, value)) {}
    ~Setting() { variable_ = before_; }
    Setting(const Setting&) = delete;
    Setting& operator=(const Setting&) = delete;
    T before() const { return before_; }

private:
    T& variable_;
    const T before_;
};

} // namespace rg
