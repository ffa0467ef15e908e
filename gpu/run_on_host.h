// Runs an op of the GPU backend on the host. Ops that exchange a few values with other ranks need this.
#pragma once

#include "ringgrad/core/op.h"

#include <vector>

namespace rg {

/// Runs the reference implementation of an op on copies of its tensors in host memory, and copies the results back.
/// Waits for the device.
inline void run_on_host(Op op, const Call& call) {
    std::vector<Tensor> in, out;
    for (const Tensor& t : call.in) in.push_back(t.to_host());
    for (const Tensor& t : call.out) out.push_back(Tensor::on_host(t.shape(), t.dtype()));
    op->reference({call.attrs, in, out});
    for (size_t i = 0; i < out.size(); ++i) call.out[i].copy_from(out[i]);
}

} // namespace rg
