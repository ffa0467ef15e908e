// Ops that exchange a few values with other ranks do so on the host.
#pragma once

#include "core/op_table.h"
#include "gpu/cuda.cuh"

namespace rg::RG_GPU {

/// Runs the reference of an op on copies of its tensors in the host's memory.
void on_host(Op op, const Call& call);

} // namespace rg::RG_GPU
