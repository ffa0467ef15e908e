// Convolution with Conv::groups > 1, and its gradients, unless Winograd is faster.
#pragma once

#include "ringgrad/core/ops/conv.h"

namespace rg::cpu::groups {

/// Returns true if the functions below are the fastest for a convolution with the result y.
bool fits(const Tensor& w, const Conv& conv, const Tensor& y);
void conv2d(const Call& call);
void conv2d_grad(const Call& call);

} // namespace rg::cpu::groups
