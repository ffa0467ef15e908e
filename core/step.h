// Step: one op of a trace or a plan.
#pragma once

#include "core/op_table.h"

namespace rg {

struct Step {
    Op op;
    Attrs attrs;
    std::array<Tensor, kMaxInputs> in;
    std::array<Tensor, kMaxOutputs> out;
    std::span<const Tensor> inputs() const { return {in.data(), size_t(row(op).inputs)}; }
    std::span<const Tensor> outputs() const { return {out.data(), size_t(row(op).outputs)}; }
};

} // namespace rg
