// Convolution with Conv::groups > 1, and its gradients.
#pragma once

#include "ringgrad/core/op.h"

namespace rg::cpu::groups {

void conv2d(const Call& call);
void conv2d_grad(const Call& call);

} // namespace rg::cpu::groups
