// Fuses steps of a trace (plan.h): one op does the work of several, and uses their results while these are in cache.
#pragma once

#include "core/step.h"

#include <vector>

namespace rg {

/// Replaces each group of steps that can be fused by one step that does the work of the group. Also splits some steps
/// to save memory, and inserts steps that round filters if the context has a device. `results` are the tensors that the
/// traced function returns; the fused steps still write them.
void fuse(std::vector<Step>& steps, std::span<const Tensor> results);

} // namespace rg
