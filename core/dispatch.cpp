// Implements the functions of op.h that check, record and execute ops.
#include "core/op.h"

#include "core/context.h"
#include "core/device.h"
#include "core/profile.h"
#include "core/tape.h"

namespace rg {

double flops_of(Op op, const Call& call) { return op->flops ? op->flops(call) : double(call.out[0].numel()); }

void execute(Op op, const Call& call) {
    const Context& c = context();
    if (c.device)
        for (const auto& side : {call.in, call.out})
            for (const Tensor& t : side)
                RG_CHECK(!t.defined() || t.numel() == 0 || t.device() == c.device, op->name, ": expected tensors on ",
                         c.device->name(), ", got one of shape ", t.shape().str(),
                         " elsewhere; copy it with Tensor::to_device()");
    else if (op->check)
        op->check(call);
    const Kernel kernel = c.device ? c.device->kernel(op) : c.backend == Backend::cpu ? op->cpu : op->reference;
    const auto work = [&] { kernel ? kernel(call) : run_on_host(op, call); };
    if (c.profile) {
        const double seconds = c.device ? c.device->time_of(work) : wall_seconds(work);
        double bytes = 0;
        for (const auto& side : {call.in, call.out})
            for (const Tensor& t : side) bytes += t.defined() ? double(t.bytes()) : 0;
        c.profile->add(op, seconds, flops_of(op, call), bytes);
    } else {
        work();
    }
    for (const Tensor& t : call.out) t.note_write();
    if (after_op) after_op(op, call);
}

void run_on_host(Op op, const Call& call) {
    std::vector<Tensor> in(call.in.begin(), call.in.end()), out;
    to_host(in);
    for (const Tensor& t : call.out) {
        out.push_back(t.defined() ? Tensor::empty_on_host(t.shape(), t.dtype()) : Tensor());
        for (size_t i = 0; i < in.size() && t.defined(); ++i) // an op in place writes to the copy of its input
            if (call.in[i].defined() && call.in[i].key() == t.key() && call.in[i].shape() == t.shape())
                out.back() = in[i];
    }
    Context host = context();
    host.device = nullptr;
    const ContextScope scope(host);
    const Call host_call{call.attrs, in, out};
    if (op->check) op->check(host_call);
    op->cpu(host_call);
    for (size_t i = 0; i < out.size(); ++i)
        if (out[i].defined()) call.out[i].copy_from(out[i]);
}

namespace {

/// Throws Error if a required input is undefined, or if an input has another type than the row declares. If
/// Scope::tape is set and the op has a backward rule, also throws if a `fused` input is defined.
void check_types(const OpRow& row, std::span<const Tensor> in) {
    DType activation = DType::f32, precise = DType::f32;
    bool known = false; // true after the first input of Type::activation or Type::precise has set these two
    for (size_t i = 0; i < in.size(); ++i) {
        const Tensor& t = in[i];
        const auto [name, type, presence] = row.inputs[i];
        if (!t.defined()) {
            RG_CHECK(presence != Presence::required, row.name, ": ", name, " is undefined");
            continue;
        }
        RG_CHECK(presence != Presence::fused || !Scope::current().tape || !row.backward, row.name, ": expected no ",
                 name, " where gradients are recorded, got one; only a plan passes it");
        if (!known && (type == Type::activation || type == Type::precise)) {
            known = true;
            activation = t.dtype() == DType::bf16 || t.dtype() == DType::f64 ? t.dtype() : DType::f32;
            precise = t.dtype() == DType::f64 ? DType::f64 : DType::f32;
        }
        const DType expected = type == Type::activation ? activation
                               : type == Type::precise  ? precise
                               : type == Type::i32      ? DType::i32
                               : type == Type::u8       ? DType::u8
                                                        : DType::f32;
        const bool advise = expected == DType::f32 && t.dtype() == DType::bf16;
        RG_CHECK(t.dtype() == expected, row.name, ": ", name, " is ", name_of(t.dtype()), ", expected ",
                 name_of(expected), advise ? "; cast() it" : "");
    }
}

} // namespace

OutputSpecs infer(const OpRow& row, std::span<const Tensor> in, const Attrs& attrs) {
    check_types(row, in);
    return row.infer(in, attrs);
}

std::string wrong_alias(const OpRow& row, std::span<const Tensor> in, std::span<const Tensor> out) {
    for (size_t o = 0; o < out.size(); ++o) {
        for (size_t i = 0; i < in.size(); ++i) {
            const bool updates = i == o && int(i) < row.in_place;
            const bool same = out[o].key() == in[i].key() && out[o].bytes() == in[i].bytes();
            if (updates && !same)
                return cat(row.name, ": expected input ", row.inputs[i].name, " as output ", o,
                           ", since the op works in place, got another tensor; pass the input again");
            if (overlap(out[o], in[i]) && !(updates || (same && row.may_be[o] >> i & 1)))
                return cat(row.name, ": expected output ", o, " to share no memory with input ", row.inputs[i].name,
                           ", got tensors that do; pass another tensor, or none");
        }
        for (size_t other = 0; other < o; ++other)
            if (overlap(out[o], out[other]))
                return cat(row.name, ": expected outputs that share no memory, got outputs ", other, " and ", o,
                           ", which do; pass another tensor, or none");
    }
    return {};
}

std::array<Tensor, kMaxOutputs> run(Op op, std::initializer_list<Tensor> in, const Attrs& attrs,
                                    std::initializer_list<Tensor> into) {
    return run(op, std::span(in.begin(), in.size()), attrs, std::span(into.begin(), into.size()));
}

std::array<Tensor, kMaxOutputs> run(Op op, std::span<const Tensor> in, const Attrs& attrs,
                                    std::span<const Tensor> into) {
    const OpRow& r = *op;
    RG_CHECK(r.reference && r.cpu && r.infer, r.name,
             ": expected a row with reference, cpu and infer, got one without; define all three");
    RG_CHECK(r.inputs.size() <= size_t(kMaxInputs) && r.outputs >= 1 && r.outputs <= kMaxOutputs, r.name,
             ": expected a row with at most ", kMaxInputs, " inputs and 1 to ", kMaxOutputs, " outputs, got ",
             r.inputs.size(), " and ", r.outputs);
    RG_CHECK(in.size() <= r.inputs.size(), r.name, ": takes ", r.inputs.size(), " inputs, got ", in.size());
    std::array<Tensor, kMaxInputs> all;
    std::copy(in.begin(), in.end(), all.begin());
    const std::span<const Tensor> inputs(all.data(), r.inputs.size());
    const OutputSpecs specs = infer(r, inputs, attrs);
    std::array<Tensor, kMaxOutputs> out;
    for (size_t i = 0; i < size_t(r.outputs); ++i) {
        if (i < into.size() && into[i].defined()) {
            out[i] = into[i];
            RG_CHECK(out[i].shape() == specs[i].shape && out[i].dtype() == specs[i].dtype, r.name, ": expected output ",
                     i, " of ", name_of(specs[i].dtype), " ", specs[i].shape.str(), ", got ", name_of(out[i].dtype()),
                     " ", out[i].shape().str(), "; pass a tensor of that type and shape, or none");
        } else {
            out[i] = Tensor::empty(specs[i].shape, specs[i].dtype);
        }
    }
    const std::span<const Tensor> outputs(out.data(), size_t(r.outputs));
    const std::string error = wrong_alias(r, inputs, outputs);
    RG_CHECK(error.empty(), error);
    const Scope& scope = Scope::current();
    if (scope.trace) {
        scope.trace->record(op, attrs, inputs, outputs);
    } else if (!DryRun::active()) {
        const NoTape pause; // so that no tape records the copies of tensors that a kernel makes
        execute(op, {attrs, inputs, outputs});
    }
    if (scope.tape) scope.tape->record(op, attrs, inputs, outputs);
    return out;
}

} // namespace rg
