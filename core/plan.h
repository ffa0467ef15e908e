// A function of tensors as a list of steps with memory planned ahead: traced once, then replayed.
//
// While a Trace exists, ops do not execute; run() appends what they would have done, forward and backward alike. A
// Plan takes the list, fuses what fuse.h knows, gives every inner value a place in one block of memory such that
// values that live at the same time do not overlap, and replays the steps without allocating anything. What varies
// from call to call is read from memory: the inputs are bound anew for each call, parameters and gradients are where
// they always were.
#pragma once

#include "core/device.h"
#include "core/step.h"

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace rg {

/// While one exists on this thread, ops are noted instead of executed. Values cannot be read: Tensor says so.
class Trace final : public Recorder {
public:
    Trace();
    ~Trace();
    Trace(const Trace&) = delete;
    Trace& operator=(const Trace&) = delete;

    void record(Op op, const Attrs& attrs, std::span<const Tensor> in, std::span<const Tensor> out) override;
    void record_copy(const char*, const char*, const Tensor&, const Tensor&) override {} // Tensor refuses those
    std::vector<Step> steps;

private:
    DryRun dry_;
    Recorder* before_;
};

class Plan {
public:
    /// Steps of a trace, the placeholders that stood for the inputs, and what the function returned.
    Plan(std::vector<Step> steps, std::span<const Tensor> placeholders, std::span<const Tensor> results);
    Plan(Plan&&) = default;

    /// Executes all steps on the context's backend. Inputs must have the placeholders' shapes and types. The results
    /// keep their memory, and are overwritten by the next replay. Allocates nothing. after_step, if any, is called
    /// after each step, and says whether it has waited for that one. On a device a step has only been started by then,
    /// and from the second replay on steps are started as graphs: one ends where after_step has waited in the first
    /// replay, and after_step is called after each.
    using AfterStep = std::function<bool(const Plan&, size_t step)>;
    std::span<const Tensor> replay(std::span<const Tensor> inputs, const AfterStep& after_step = {});

    /// Tensors outside of the plan that its steps write: gradients, running statistics.
    const std::vector<Tensor>& written() const { return written_; }
    /// Bytes of the block that holds all inner values, and what they would take without sharing.
    int64_t bytes() const { return bytes_; }
    int64_t bytes_unshared() const { return bytes_unshared_; }
    const std::vector<Step>& steps() const { return steps_; }
    /// A table: step by step what is read and written, where it lies, operations and bytes; then the totals.
    std::string table() const;

private:
    struct Binding { // argument of a step that is a view of input `input`
        size_t step, argument, input;
        Tensor view;
    };
    void place(std::span<const Tensor> results);
    void run(size_t begin, size_t end, const AfterStep& after_step = {});
    void capture(Device& device);

    std::vector<Step> steps_;
    std::vector<Tensor> placeholders_, results_, written_;
    std::vector<Binding> bindings_;
    Tensor arena_;
    // On a device: copies of the inputs, which have one place, so that the steps can become graphs.
    std::vector<Tensor> device_inputs_;
    std::set<size_t> ends_;                                                 // of graphs: the steps that follow
    std::vector<std::pair<size_t, std::unique_ptr<Device::Graph>>> graphs_; // after their ends
    int64_t replays_ = 0;                                                   // that may be of graphs
    int64_t bytes_ = 0, bytes_unshared_ = 0;
};

} // namespace rg
