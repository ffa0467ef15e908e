// Convolution with Conv::groups > 1, and its gradients, unless Winograd is faster.
#pragma once

#include "core/ops/conv.h"

namespace rg::cpu::groups {

/// Returns true if the functions below should compute a convolution with the result y: it has several groups, and
/// Winograd is not applicable or is slower.
bool fits(const Tensor& w, const Conv& conv, const Tensor& y);
void conv2d(const Call& call);
void conv2d_grad(const Call& call);

} // namespace rg::cpu::groups
