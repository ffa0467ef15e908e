// Traces ops, places values in memory, and replays steps. In a trace, each intermediate has a block of its own, which
// has a number (Tensor::key().id) but no memory. A view has the number of its source. So a plan reserves the memory of
// a block until the last step that uses the value or a view of it.
#include "core/plan.h"

#include "core/chunks.h"
#include "core/context.h"
#include "core/cpu/parallel.h"
#include "core/formatted.h"
#include "core/fuse.h"
#include "core/prepared_memory.h"

#include <algorithm>
#include <map>

namespace rg {

namespace {

constexpr int64_t kAlign = 64;

/// Describes an intermediate or a result: the first and last step that write or read it, and its size in bytes, rounded
/// up to kAlign. For an intermediate, also holds its offset in the arena.
struct LiveRange {
    size_t first, last;
    int64_t bytes = 0, offset = 0;
};

/// Gives each value, the largest first, the lowest offset at which the arena is free during the value's range. Returns
/// the number of bytes in the arena. This is a first-fit variant of "greedy by size" (Pisarchyk and Lee, 2020, section
/// 5).
int64_t place_all(std::vector<LiveRange*> ranges) {
    std::sort(ranges.begin(), ranges.end(), [](const LiveRange* a, const LiveRange* b) {
        return a->bytes != b->bytes ? a->bytes > b->bytes : a->first < b->first;
    });
    int64_t total = 0;
    std::vector<const LiveRange*> placed; // sorted by offset
    for (LiveRange* range : ranges) {
        int64_t offset = 0;
        for (const LiveRange* other : placed) {
            if (other->last < range->first || other->first > range->last) continue;
            if (offset + range->bytes <= other->offset) break;
            offset = std::max(offset, other->offset + other->bytes);
        }
        range->offset = offset;
        placed.insert(std::upper_bound(placed.begin(), placed.end(), range,
                                       [](const LiveRange* a, const LiveRange* b) { return a->offset < b->offset; }),
                      range);
        total = std::max(total, offset + range->bytes);
    }
    return total;
}

/// The bytes of a block that steps have written.
class WrittenBytes {
public:
    void add(const Tensor& t) {
        int64_t begin = t.key().offset, end = begin + t.bytes();
        auto at = ends_.upper_bound(begin);
        if (at != ends_.begin() && std::prev(at)->second >= begin) --at;
        for (; at != ends_.end() && at->first <= end; at = ends_.erase(at))
            begin = std::min(begin, at->first), end = std::max(end, at->second);
        ends_[begin] = end;
    }
    bool has(const Tensor& t) const {
        const auto after = ends_.upper_bound(t.key().offset);
        return t.numel() == 0 || (after != ends_.begin() && std::prev(after)->second >= t.key().offset + t.bytes());
    }

private:
    std::map<int64_t, int64_t> ends_; // of ranges that do not touch, by their begins
};

/// Returns the LiveRange of each intermediate, and of each result that has no memory yet, by the number of its block.
/// Appends to `written_tensors` the blocks outside of the plan that the steps write, such as those of gradients. Skips
/// the placeholders, whose block numbers are the keys of `inputs`.
std::map<uint64_t, LiveRange> find_live_ranges(std::span<const Step> steps, const std::map<uint64_t, size_t>& inputs,
                                               std::vector<Tensor>& written_tensors) {
    std::map<uint64_t, LiveRange> ranges;
    std::map<uint64_t, WrittenBytes> made; // by the steps so far
    std::set<uint64_t> written_ids, read_ids;
    for (size_t s = 0; s < steps.size(); ++s) {
        const auto visit = [&](const Tensor& t, bool written) {
            if (!t.defined() || inputs.contains(t.key().id)) return;
            if (t.has_memory()) {
                // Blocks are numbered in the order in which they are made, so the function has made those after its
                // inputs.
                RG_CHECK(!written || inputs.empty() || t.key().id < inputs.begin()->first ||
                             !read_ids.contains(t.key().id),
                         "accelerate: expected a traced function to change no constant that it makes and reads, got ",
                         t.shape().str(), ", which ", steps[s].op->name, " changes; make it before the function");
                if (!written) read_ids.insert(t.key().id);
                if (written && written_ids.insert(t.key().id).second) written_tensors.push_back(t.whole());
                return;
            }
            WrittenBytes& bytes_made = made[t.key().id];
            RG_CHECK(written || bytes_made.has(t), "accelerate: expected ", steps[s].op->name,
                     " to read the result of an op of the function, got ", t.shape().str(),
                     " of Tensor::empty() or zeros(), which hold nothing while traced; use Tensor::constant()");
            if (written) bytes_made.add(t);
            LiveRange& range = ranges.try_emplace(t.key().id, LiveRange{s, s}).first->second;
            range.last = s;
            range.bytes = std::max(range.bytes, (t.block_bytes() + kAlign - 1) / kAlign * kAlign);
        };
        for (const Tensor& t : steps[s].inputs()) visit(t, false);
        for (const Tensor& t : steps[s].outputs()) visit(t, true);
    }
    return ranges;
}

/// Calls f for each defined input that the op's row declares as Type::precise, such as a parameter or a statistic.
template <class F>
void each_parameter(const Step& step, F f) {
    for (size_t i = 0; i < step.op->inputs.size(); ++i)
        if (step.in[i].defined() && step.op->inputs[i].type == Type::precise) f(step.in[i]);
}

} // namespace

void Trace::record(Op op, const Attrs& attrs, std::span<const Tensor> in, std::span<const Tensor> out) {
    Step step{op, attrs, {}, {}};
    std::copy(in.begin(), in.end(), step.in.begin());
    std::copy(out.begin(), out.end(), step.out.begin());
    steps.push_back(std::move(step));
}

Plan::Plan(std::vector<Step> steps, std::span<const Tensor> placeholders, std::span<const Tensor> results,
           const Tensor& arena)
    : steps_(std::move(steps)), placeholders_(placeholders.begin(), placeholders.end()), arena_(arena) {
    fuse(steps_, results);
    steps_per_chunk_ = steps_.size();
    if (!context().device)
        std::tie(steps_per_chunk_, chunks_) = split_into_chunks(steps_, placeholders, results, thread_count());
    place(results);
    // The chunks share what kernels prepare from parameters. No step of a chunk writes a parameter.
    for (size_t s = 0; s < steps_per_chunk_ * chunks_ && chunks_ > 1; ++s)
        steps_[s].prepared =
            s < steps_per_chunk_ ? std::make_shared<PreparedMemory>() : steps_[s - steps_per_chunk_].prepared;
}

void Plan::place(std::span<const Tensor> results) {
    std::map<uint64_t, size_t> input_of;
    for (size_t i = 0; i < placeholders_.size(); ++i) input_of.emplace(placeholders_[i].key().id, i);
    std::set<uint64_t> result_ids; // values that must outlive the last step
    for (const Tensor& t : results) result_ids.insert(t.key().id);
    std::map<uint64_t, LiveRange> ranges = find_live_ranges(steps_, input_of, written_);

    std::vector<LiveRange*> shared;
    std::map<uint64_t, Tensor> block; // the memory of each intermediate and result
    for (auto& [id, range] : ranges) {
        bytes_unshared_ += range.bytes;
        if (result_ids.contains(id))
            block.emplace(id, Tensor::constant({range.bytes}, 0, DType::u8));
        else
            shared.push_back(&range);
    }
    arena_bytes_ = bytes_ = place_all(shared);
    // A plan of a dry run shares arenas without memory, so that these are counted once.
    if (!arena_.defined() || arena_.has_memory() == DryRun::active() || arena_.bytes() < arena_bytes_)
        arena_ = Tensor::empty({arena_bytes_}, DType::u8);
    for (auto& [id, range] : ranges) {
        if (result_ids.contains(id))
            bytes_ += range.bytes;
        else
            block.emplace(id, arena_.slice(range.offset, {range.bytes}));
    }

    for (size_t s = 0; s < steps_.size(); ++s) {
        const auto bind_or_place = [&](Tensor& t, size_t argument) {
            if (!t.defined()) return;
            if (const auto input = input_of.find(t.key().id); input != input_of.end()) {
                RG_CHECK(argument < kMaxInputs, steps_[s].op->name, ": expected a traced function that does not ",
                         "write its inputs, got an output to input ", input->second, "; write to another tensor");
                bindings_.push_back({s, argument, input->second, t});
            } else if (const auto memory = block.find(t.key().id); memory != block.end()) {
                t = t.rebased_on(memory->second);
            }
        };
        for (size_t i = 0; i < kMaxInputs; ++i) bind_or_place(steps_[s].in[i], i);
        for (size_t i = 0; i < kMaxOutputs; ++i) bind_or_place(steps_[s].out[i], kMaxInputs + i);
        const std::string error = wrong_alias(*steps_[s].op, steps_[s].inputs(), steps_[s].outputs());
        RG_CHECK(error.empty(), "accelerate: ", error); // no rule of fuse() and no place in the arena should cause it
    }
    for (const Tensor& t : results) {
        if (const auto memory = block.find(t.key().id); memory != block.end()) {
            results_.push_back(t.rebased_on(memory->second));
        } else {
            RG_CHECK(t.defined() && t.has_memory(), "accelerate: a result must be computed by the function, ",
                     "not be one of its inputs; return the result of an op");
            results_.push_back(t);
        }
    }
}

void Plan::move_to(const Tensor& arena) {
    if (arena.bytes() <= arena_.bytes()) return;
    const auto move = [&](Tensor& t) {
        if (t.defined() && t.key().id == arena_.key().id) t = t.rebased_on(arena);
    };
    for (Step& step : steps_) std::ranges::for_each(step.in, move), std::ranges::for_each(step.out, move);
    arena_ = arena;
    graphs_.clear(), graph_replays_ = 0; // graphs contain addresses
}

std::span<const Tensor> Plan::replay(std::span<const Tensor> inputs, const AfterStep& after_step) {
    const Context& c = context();
    const auto bind = [&](std::span<const Tensor> tensors) {
        for (const Binding& b : bindings_) steps_[b.step].in[b.argument] = b.view.rebased_on(tensors[b.input]);
    };
    std::vector<Tensor> copies; // the inputs, with a copy of each that shares memory with a result; empty if none does
    for (size_t i = 0; i < inputs.size(); ++i) {
        const auto shares = [&](const Tensor& t) { return overlap(t, inputs[i]); };
        if (std::ranges::any_of(written_, shares)) { // steps write to the input's block, perhaps elsewhere in it
            for (const Step& step : steps_)
                RG_CHECK(std::ranges::none_of(step.outputs(), shares), "accelerate: expected a traced function that ",
                         "does not write its inputs, got input ", i, " where ", step.op->name, " writes; clone() it");
        } else if (std::ranges::any_of(results_, shares)) {
            if (copies.empty()) copies.assign(inputs.begin(), inputs.end());
            copies[i] = inputs[i].clone();
        }
    }
    if (!copies.empty()) inputs = copies;
    bind(inputs);
    ++replays_;
    if (c.device) {
        for (const Binding& b : bindings_) // check host inputs, such as labels, before they are copied
            if (const Step& step = steps_[b.step]; step.op->check)
                step.op->check({step.attrs, step.inputs(), step.outputs()});
        for (size_t i = device_inputs_.size(); i < inputs.size(); ++i)
            device_inputs_.push_back(Tensor::empty(inputs[i].shape(), inputs[i].dtype()));
        for (size_t i = 0; i < inputs.size(); ++i) device_inputs_[i].copy_from(inputs[i]);
        bind(device_inputs_);
    }
    const bool use_graphs = c.device && !c.profile && !c.sync;   // a profile and `sync` need the host during ops
    if (use_graphs && ++graph_replays_ == 2) capture(*c.device); // the first replay has allocated scratch memory
    if (use_graphs && !graphs_.empty())
        for (const auto& [end, graph] : graphs_) {
            graph->launch();
            if (after_step) after_step(*this, end - 1);
        }
    else
        run(0, steps_.size(), after_step);
    // Replace the tensors in the steps by the placeholders, so that the plan does not keep the caller's memory.
    for (const Binding& b : bindings_) steps_[b.step].in[b.argument] = b.view;
    return results_;
}

void Plan::keep_prepared() {
    keeps_prepared_ = true;
    std::set<uint64_t> changing; // blocks whose values a replay changes
    for (const Tensor& t : written_) changing.insert(t.key().id);
    for (const Tensor& t : placeholders_) changing.insert(t.key().id);
    if (arena_.defined()) changing.insert(arena_.key().id);
    for (const Tensor& t : results_) changing.insert(t.key().id);
    for (Step& step : steps_) {
        bool constant = true;
        each_parameter(step, [&](const Tensor& t) { constant = constant && !changing.contains(t.key().id); });
        if (constant && !step.prepared) step.prepared = std::make_shared<PreparedMemory>();
    }
}

void Plan::capture(Device& device) {
    graph_ends_.insert(steps_.size());
    size_t begin = 0;
    try {
        for (const size_t end : graph_ends_) {
            graphs_.emplace_back(end, device.capture([this, begin, end] { run(begin, end); }));
            if (!graphs_.back().second) return graphs_.clear();
            begin = end;
        }
    } catch (const Error&) {
        graphs_.clear(); // launch the ops one by one instead, which is slower; an op that fails throws again then
    }
}

void Plan::run(size_t begin, size_t end, const AfterStep& after_step) {
    for (size_t s = begin; s < end; ++s) {
        const Step& step = steps_[s];
        if (step.prepared) {
            // No version decreases, so the sum grows if any parameter changes. Without keep_prepared(), it always
            // grows.
            uint64_t version = keeps_prepared_ ? 0 : replays_;
            each_parameter(step, [&](const Tensor& t) { version += t.version(); });
            step.prepared->begin(version);
        }
        {
            const Setting<PreparedMemory*> prepared(Scope::current().prepared, step.prepared.get());
            execute(step.op, {step.attrs, step.inputs(), step.outputs()});
        }
        if (step.prepared) step.prepared->end();
        if (after_step && after_step(*this, s)) graph_ends_.insert(s + 1);
    }
}

std::string Plan::table() const {
    const auto describe = [&](const Tensor& t) -> std::string {
        const std::string size = cat(name_of(t.dtype()), t.shape().str());
        if (arena_.defined() && t.key().id == arena_.key().id) return cat(size, "@", t.key().offset);
        for (size_t i = 0; i < placeholders_.size(); ++i)
            if (t.key().id == placeholders_[i].key().id) return cat(size, "=input", i);
        for (const Tensor& r : results_)
            if (t.key().id == r.key().id) return cat(size, "=result", &r - results_.data());
        return size;
    };
    std::string text =
        formatted("%4s %-20s %10s %10s  %s\n", "step", "op", "MFLOP", "KiB", "written <- read (type[shape]@offset)");
    double total_flops = 0, total_bytes = 0;
    for (size_t s = 0; s < steps_.size(); ++s) {
        const Step& step = steps_[s];
        double bytes = 0;
        std::string reads, writes;
        for (const Tensor& t : step.inputs())
            if (t.defined()) bytes += double(t.bytes()), reads += cat(" ", describe(t));
        for (const Tensor& t : step.outputs())
            if (t.defined() && t.numel()) bytes += double(t.bytes()), writes += cat(describe(t), " ");
        const double flops = flops_of(step.op, {step.attrs, step.inputs(), step.outputs()});
        total_flops += flops, total_bytes += bytes;
        if (s >= steps_per_chunk_ && s < steps_per_chunk_ * chunks_) continue;
        text += formatted("%4zu %-20s %10.2f %10.1f  ", s, step.op->name, flops * 1e-6, bytes / 1024);
        text += cat(writes, "<-", reads, "\n");
        if (chunks_ > 1 && s + 1 == steps_per_chunk_)
            text += cat("and the same for ", chunks_ - 1, " more chunks of the images\n");
    }
    return text +
           formatted("%zu steps, %.2f GFLOP, %.1f MiB read and written; %.1f MiB planned, %.1f MiB without sharing\n",
                     steps_.size(), total_flops * 1e-9, total_bytes / 1048576, double(bytes_) / 1048576,
                     double(bytes_unshared_) / 1048576);
}

} // namespace rg
