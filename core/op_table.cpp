// run(): the one road that every op takes, and the profile that it keeps on the way.
#include "core/op_table.h"

#include "core/context.h"
#include "core/device.h"
#include "core/plan.h"
#include "core/profile.h"
#include "core/tape.h"

#include <algorithm>
#include <cstdio>
#include <vector>

namespace rg {

double flops_of(Op op, const Call& call) { return row(op).flops ? row(op).flops(call) : double(call.out[0].numel()); }

void execute(Op op, const Call& call) {
    const Context& c = context();
    if (c.device)
        for (const auto& side : {call.in, call.out})
            for (const Tensor& t : side)
                RG_CHECK(!t.defined() || t.numel() == 0 || t.device() == c.device, row(op).name,
                         ": expected tensors on ", c.device->name(), ", got one of shape ", t.shape().str(),
                         " elsewhere; see Tensor::copy_from()");
    else if (row(op).check)
        row(op).check(call);
    const Kernel kernel = c.device ? c.device->kernel(op) : c.backend == Backend::cpu ? row(op).cpu : row(op).reference;
    if (c.profile) {
        const auto work = [&] { kernel(call); };
        const double seconds = c.device ? c.device->seconds(work) : seconds_of(work);
        double bytes = 0;
        for (const auto& side : {call.in, call.out})
            for (const Tensor& t : side) bytes += t.defined() ? double(t.bytes()) : 0;
        c.profile->add(op, seconds, flops_of(op, call), bytes);
    } else {
        kernel(call);
    }
    if (after_op) after_op(op, call);
}

std::array<Tensor, kMaxOutputs> run(Op op, std::initializer_list<Tensor> in, const Attrs& attrs,
                                    std::initializer_list<Tensor> into) {
    const OpRow& r = row(op);
    RG_CHECK(int(in.size()) == r.inputs, r.name, ": takes ", r.inputs, " inputs, got ", in.size());
    const std::span<const Tensor> inputs(in.begin(), in.size());
    const OutputSpecs specs = r.infer(inputs, attrs);
    std::array<Tensor, kMaxOutputs> out;
    for (size_t i = 0; i < size_t(r.outputs); ++i) {
        if (i < into.size() && into.begin()[i].defined()) {
            out[i] = into.begin()[i];
            RG_CHECK(out[i].shape() == specs[i].shape && out[i].dtype() == specs[i].dtype, r.name, ": output ", i,
                     " is ", name_of(specs[i].dtype), " ", specs[i].shape.str(), ", the given one is ",
                     name_of(out[i].dtype()), " ", out[i].shape().str());
        } else {
            out[i] = Tensor::empty(specs[i].shape, specs[i].dtype);
        }
    }
    const std::span<const Tensor> outputs(out.data(), size_t(r.outputs));
    if (Trace* trace = Trace::active()) {
        trace->add(op, attrs, inputs, outputs);
    } else if (!DryRun::active()) {
        const NoTape pause; // copies within a kernel are not the program's
        execute(op, {attrs, inputs, outputs});
    }
    if (Tape* tape = Tape::active()) tape->record(op, attrs, inputs, outputs);
    return out;
}

void Profile::add(Op op, double seconds, double flops, double bytes) {
    Entry& e = entries_[size_t(op)];
    ++e.calls;
    e.seconds += seconds;
    e.flops += flops;
    e.bytes += bytes;
}

std::string Profile::table(double total_seconds, Rates most) const {
    std::vector<size_t> order;
    double sum = 0;
    for (size_t i = 0; i < entries_.size(); ++i)
        if (entries_[i].calls) order.push_back(i), sum += entries_[i].seconds;
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return entries_[a].seconds > entries_[b].seconds; });
    const double total = std::max(total_seconds, sum);
    char line[160];
    std::string text;
    const auto print = [&](const char* format, auto... values) {
        std::snprintf(line, sizeof line, format, values...);
        text += line;
    };
    print("%-20s %8s %12s %7s %10s %10s", "op", "calls", "ms", "share", "GFLOP/s", "GB/s");
    text += most.bytes > 0 ? "   of most    of most\n" : "\n";
    for (size_t i : order) {
        const Entry& e = entries_[i];
        const double flops = e.flops / e.seconds, bytes = e.bytes / e.seconds;
        print("%-20s %8lld %12.3f %6.1f%% %10.1f %10.1f", row(Op(i)).name, static_cast<long long>(e.calls),
              e.seconds * 1e3, 100 * e.seconds / total, flops * 1e-9, bytes * 1e-9);
        if (most.bytes > 0) print(" %7.1f %% %8.1f %%", 100 * flops / most.flops, 100 * bytes / most.bytes);
        text += "\n";
    }
    if (total > sum)
        print("%-20s %8s %12.3f %6.1f%%\n", "(outside of ops)", "", (total - sum) * 1e3, 100 * (total - sum) / total);
    if (most.bytes > 0)
        print("%-20s %8s %12s %7s %10.1f %10.1f\n", "(most)", "", "", "", most.flops * 1e-9, most.bytes * 1e-9);
    return text;
}

} // namespace rg
