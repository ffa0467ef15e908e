// Two ways to compute a convolution with Conv::groups > 1 and its gradients. conv_choice.cpp chooses between them.
#pragma once

#include "core/ops/conv.h"

namespace rg::cpu {

/// Each lane of a vector computes one channel of the result.
namespace lanes {
void conv2d(const Call& call);
void conv2d_grad(const Call& call);
} // namespace lanes

/// Each group is a convolution of its own, on copies of its channels.
namespace group_by_group {
void conv2d(const Call& call);
void conv2d_grad(const Call& call);
} // namespace group_by_group

} // namespace rg::cpu
