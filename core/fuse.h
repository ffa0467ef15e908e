// Fuses steps of a trace, so that a step's result is used while it is in cache.
#pragma once

#include "ringgrad/core/step.h"

#include <vector>

namespace rg {

/// Replaces each group of steps that can be fused by one step that does the work of the group. `results` are the
/// tensors that must have their values after the last step.
void fuse(std::vector<Step>& steps, std::span<const Tensor> results);

} // namespace rg
