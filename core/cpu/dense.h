// Fully connected layers with many inputs. conv.cpp and conv_grad.cpp call this code for convolutions that are such
// layers.
#pragma once

#include "ringgrad/core/ops/conv.h"

namespace rg::cpu {

/// Shapes: x [.. c], w [k 1 1 c], b [k] or undefined, y [.. k]; all f32.
namespace dense {
/// Returns true if a convolution of x with filters [k r s c] is a fully connected layer, and this code is faster.
bool fits(const Tensor& x, int64_t r, int64_t s, const Conv& conv);
void forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y);
/// Computes the data gradient and adds `addend` to it, unless that is undefined.
void dgrad(const Tensor& dy, const Tensor& w, const Tensor& addend, const Tensor& dx);
/// Computes the gradients of the weights and the bias.
void wgrad(const Tensor& dy, const Tensor& x, const Tensor& dw, const Tensor& db);
} // namespace dense

} // namespace rg::cpu
