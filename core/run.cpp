// run() and execute(): every op passes through here.
#include "core/op_table.h"

#include "core/context.h"
#include "core/device.h"
#include "core/profile.h"
#include "core/tape.h"

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
    const Scope& scope = Scope::current();
    if (scope.trace) {
        scope.trace->record(op, attrs, inputs, outputs);
    } else if (!DryRun::active()) {
        const NoTape pause; // copies within a kernel are not the program's
        execute(op, {attrs, inputs, outputs});
    }
    if (scope.tape) scope.tape->record(op, attrs, inputs, outputs);
    return out;
}

} // namespace rg
