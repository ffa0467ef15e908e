// Fully connected layers with many inputs. conv.cpp and conv_grad.cpp call this code for the 1x1 convolutions that fit.
//
// Shapes for c inputs and k outputs: x [.. c], w [k 1 1 c], bias b [k] or undefined, y [.. k]; all f32.
#pragma once

#include "core/ops/conv.h"

namespace rg::cpu::dense {

/// Returns true if a convolution of x with filters of r x s taps is a fully connected layer at each pixel (1x1, stride
/// 1, no padding, one group), x is f32, and has 512 or more channels. Then this code should be faster than the general
/// convolution.
bool fits(const Tensor& x, int64_t r, int64_t s, const Conv& conv);
void forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y);
/// Computes the data gradient dx. Adds `addend` to dx if `addend` is defined.
void dgrad(const Tensor& dy, const Tensor& w, const Tensor& addend, const Tensor& dx);
/// Computes the gradients of the weights and the bias.
void wgrad(const Tensor& dy, const Tensor& x, const Tensor& dw, const Tensor& db);

} // namespace rg::cpu::dense
