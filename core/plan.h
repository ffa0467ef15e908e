// Defines Trace, which records the ops of a function, and Plan, which replays them in memory that it allocates once.
//
// While a Trace exists, ops do not execute: run() of op.h appends each op, also of a backward pass or an update, to a
// list of steps. A Plan fuses steps (fuse.h) and places all intermediates in one block of memory, the arena. Values
// that live at the same time do not overlap there. A replay executes the steps. All that changes between calls must be
// in tensors: the inputs, and tensors outside of the function that the trace used, such as parameters. (Context::sync
// is an exception; a device then makes no graph of the steps.)
#pragma once

#include "core/device.h"
#include "core/step.h"

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace rg {

/// While a Trace exists on this thread, ops are recorded instead of executed. Their new results have no memory, so
/// reading them throws Error. A tensor that has memory, such as a parameter, keeps its values even if an op writes to
/// it.
class Trace final : public Recorder {
public:
    void record(Op op, const Attrs& attrs, std::span<const Tensor> in, std::span<const Tensor> out) override;
    void record_copy(const char*, const char*, const Tensor&, const Tensor&) override {} // only a Tape records copies
    std::vector<Step> steps;

private:
    DryRun dry_;
    Setting<Recorder*> trace_{Scope::current().trace, this};
};

class Plan {
public:
    /// Takes the steps of a trace, the placeholders that the function got as inputs, and the results that it returned.
    /// Uses `arena` if that is large enough. Plans with the same arena must not replay at the same time. On a CPU, a
    /// prediction of many images becomes one of a few images at a time (chunks.h), with the same results.
    Plan(std::vector<Step> steps, std::span<const Tensor> placeholders, std::span<const Tensor> results,
         const Tensor& arena = {});
    Plan(Plan&&) = default;

    /// A function that replay() calls after each step or graph. `step` is the index of the last step that was started.
    /// Returns true if it has started work on values that the steps have written; a graph then ends after this step.
    using AfterStep = std::function<bool(const Plan&, size_t step)>;
    /// Executes all steps on the context's device or backend, and returns the results. The next replay overwrites them.
    /// The inputs must have the shapes and types of the placeholders. An input may be a result of the last replay,
    /// which is copied first. Throws Error if a step writes to memory of any other input. replay() itself allocates no
    /// tensors, except for these copies, and those of the inputs in the first replay on a device. after_step, if any,
    /// is called after each step. A device may still be working on that step then.
    ///
    /// Replays on a device without a profile or `sync` in the context can use graphs (Device::KernelGraph). The second
    /// such replay captures the steps. This and later such replays launch the graphs, if the device could capture them.
    /// A graph ends after each step for which after_step returned true before the capture, and after the last step.
    /// With graphs, after_step is called only after each graph, for its last step.
    std::span<const Tensor> replay(std::span<const Tensor> inputs, const AfterStep& after_step = {});

    /// Lets CPU kernels keep values that they prepare from parameters, such as packed filters, from replay to replay.
    /// They prepare these values again when a parameter has changed (Tensor::version()). Has no effect on a step that
    /// reads a parameter or statistic which the plan computes, writes or takes as an input.
    void keep_prepared();

    const Tensor& arena() const { return arena_; }
    /// Returns how many bytes of the arena this plan uses.
    int64_t arena_bytes() const { return arena_bytes_; }
    /// Places the intermediates in another arena, if that is larger. Their values are lost.
    void move_to(const Tensor& arena);

    /// Returns the blocks of memory outside of the plan that its steps write, such as those of gradients and running
    /// statistics.
    const std::vector<Tensor>& written() const { return written_; }
    /// Returns arena_bytes() and the number of bytes in the results.
    int64_t bytes() const { return bytes_; }
    /// Returns the number of bytes that intermediates and results would need if they shared no memory.
    int64_t bytes_unshared() const { return bytes_unshared_; }
    const std::vector<Step>& steps() const { return steps_; }
    /// Returns a table of the steps, with totals. Each line shows the op of a step, its number of floating-point
    /// operations, the number of bytes that it reads and writes, and the tensors with their places in the arena. Of
    /// the chunks of a prediction, it shows the first.
    std::string table() const;

private:
    struct Binding { // says that `argument` of `step` is a view of input `input` of the plan
        size_t step, argument, input;
        Tensor view;
    };
    void place(std::span<const Tensor> results);
    void run(size_t begin, size_t end, const AfterStep& after_step = {});
    void capture(Device& device);

    std::vector<Step> steps_;
    size_t steps_per_chunk_ = 0, chunks_ = 1; // see split_into_chunks(); one chunk has all steps
    std::vector<Tensor> placeholders_, results_, written_;
    std::vector<Binding> bindings_;
    Tensor arena_;
    std::vector<Tensor> device_inputs_; // copies of the inputs at fixed addresses, which graphs need
    std::set<size_t> graph_ends_;       // where graphs end, as the index of the step after the last one of the graph
    std::vector<std::pair<size_t, std::unique_ptr<Device::KernelGraph>>> graphs_; // with their ends, from its last step
    // Number of replays so far on a device, without a profile or `sync`. The second one captures the graphs.
    int64_t graph_replays_ = 0;
    bool keeps_prepared_ = false;
    uint64_t replays_ = 0;
    int64_t arena_bytes_ = 0, bytes_ = 0, bytes_unshared_ = 0;
};

} // namespace rg
