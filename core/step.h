// Defines Step: one op of a trace or a plan, with its attributes and tensors.
#pragma once

#include "core/op.h"

#include <memory>

namespace rg {

class PreparedMemory;

struct Step {
    Op op;
    Attrs attrs;
    std::array<Tensor, kMaxInputs> in;
    std::array<Tensor, kMaxOutputs> out;
    std::shared_ptr<PreparedMemory> prepared = nullptr; // values that CPU kernels keep for later replays; null: none
    std::span<const Tensor> inputs() const { return {in.data(), op->inputs.size()}; }
    std::span<const Tensor> outputs() const { return {out.data(), size_t(op->outputs)}; }
};

} // namespace rg
