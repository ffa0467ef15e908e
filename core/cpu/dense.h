// Fully connected layers with many inputs, and 1x1 convolutions like them (Method::dense in conv_choice.h).
//
// Shapes for c inputs and k outputs: x [.. c], w [k 1 1 c], bias b [k] or undefined, y [.. k]; all f32.
#pragma once

#include "core/ops/conv.h"

namespace rg::cpu::dense {

void forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y);
/// Computes the data gradient dx. Adds `addend` to dx if `addend` is defined.
void dgrad(const Tensor& dy, const Tensor& w, const Tensor& addend, const Tensor& dx);
/// Computes the gradients of the weights and the bias.
void wgrad(const Tensor& dy, const Tensor& x, const Tensor& dw, const Tensor& db);

} // namespace rg::cpu::dense
