// Convolutions that are fully connected layers with many inputs: conv.cpp and conv_grad.cpp hand them over.
#pragma once

#include "core/op_table.h"

namespace rg::cpu {

/// x [.. c], w [k 1 1 c], b [k] or undefined, y [.. k]; all f32.
namespace dense {
/// Whether a convolution of x with filters [k r s c] is one, and worth it.
bool fits(const Tensor& x, int64_t r, int64_t s, const Attrs& attrs);
void forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y);
/// other: what dx is added to, or undefined.
void data(const Tensor& dy, const Tensor& w, const Tensor& other, const Tensor& dx);
void filters(const Tensor& dy, const Tensor& x, const Tensor& dw, const Tensor& db);
} // namespace dense

} // namespace rg::cpu
