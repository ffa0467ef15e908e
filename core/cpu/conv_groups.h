// Convolution with Conv::groups > 1, and its gradients. conv_choice.cpp chooses it.
#pragma once

#include "core/op.h"

/// Each group is a convolution of its own, on copies of its channels.
namespace rg::cpu::group_by_group {

void conv2d(const Call& call);
void conv2d_grad(const Call& call);

} // namespace rg::cpu::group_by_group
