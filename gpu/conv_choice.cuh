// Decides which kernels compute a convolution and its gradients on a GPU: by its shape, its type and the GPU. The table
// in conv_choice.cu has all these decisions, with their reasons.
#pragma once

#include "gpu/packed_images.cuh"

namespace rg::RG_GPU {

/// The kernels of a convolution and of its gradients.
enum class KernelFamily : uint8_t {
    groups,       // conv_groups.cu
    linear,       // linear.cu
    hopper,       // conv_hopper.cu, conv_grad_hopper.cu
    packed,       // conv_packed_hopper.cu, conv_grad_packed_hopper.cu
    hopper_wgrad, // conv_grad_hopper.cu; for the data gradient, conv.cu
    portable      // conv.cu, conv_grad.cu
};

/// The largest number of filters for linear.cu.
constexpr int kMaxLinearResults = 16;
/// Returns the rows of images in a tile of conv_hopper.cu.
constexpr int rows_of_tile(int width) { return width == 16 ? 16 : 8; }

struct KernelChoice {
    KernelFamily family;
    const char* reason;
    ConvGeometry g;                      // of the forward pass
    std::optional<PackedPlan> plan = {}; // of KernelFamily::packed
};

/// Return the choice for a call of conv2d or of conv2d_grad. If Context::profile is set, note it there.
KernelChoice choose_conv2d(const Call& call);
KernelChoice choose_conv2d_grad(const Call& call);

} // namespace rg::RG_GPU
