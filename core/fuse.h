// Joins steps of a trace that can pass a value on while it is in cache.
#pragma once

#include "core/step.h"

#include <vector>

namespace rg {

/// Replaces groups of steps by one step of a fused op. `results` are the values that must exist after the last step.
void fuse(std::vector<Step>& steps, std::span<const Tensor> results);

} // namespace rg
