// Decides how a convolution and its gradients are computed on CPUs: by its shape, the type of its images and the
// instruction set. The table in conv_choice.cpp has all these decisions, with their reasons. --profile prints them.
#pragma once

#include "core/ops/conv.h"

namespace rg::cpu {

/// The ways to compute a convolution or one of its gradients.
enum class Method : uint8_t {
    depthwise,      // Depthwise (depthwise.h): each lane of a vector is a channel
    group_by_group, // conv_groups.cpp: each group is a convolution of its own
    dense,          // dense.cpp: a product of two matrices
    tiles,          // TileEngine and TileWgrad (tile_engine.h): products of bf16
    winograd,       // Winograd (winograd.h)
    direct          // Direct (conv_engine.h) and F32Wgrad (conv_grad.cpp): multiply-adds of f32, without a transform
};

enum class Pass : uint8_t { forward, dgrad, wgrad };

/// Describes a convolution of x with filters w to y, or one of its gradients.
struct ConvProblem {
    Pass pass;
    Shape x, w, y; // the gradients dx, dw and dy have the same shapes
    Conv conv;
    DType images; // the type that x and y are stored as
    DType read;   // the type that an engine reads its images as
    bool alone;   // true: the op does nothing else, such as a batch norm
};

/// Returns the method that should be fastest, of those that can compute the problem. In strict_fp32, returns neither
/// Winograd nor, if images are read as f32, tiles. If Context::profile is set, notes the choice and its reason there.
Method method_for(const ConvProblem& problem);

/// Method::group_by_group, in conv_groups.cpp.
namespace group_by_group {
void conv2d(const Call& call);
void conv2d_grad(const Call& call);
} // namespace group_by_group

} // namespace rg::cpu
