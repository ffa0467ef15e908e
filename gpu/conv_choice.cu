// The table of the choices, and its conditions.
#include "gpu/conv_choice.cuh"

#include "core/context.h"
#include "core/profile.h"

#include <algorithm>

namespace rg::RG_GPU {

namespace {

/// The largest number of rows (samples, or pixels of a 1 x 1 convolution) for linear.cu. Each block of its weight
/// gradient goes through all rows, so more of them would take long.
constexpr int64_t kMaxLinearRows = 8192;

/// Tries the families from top to bottom. `g` is that of the forward pass. `alone`: the op does nothing else, such as a
/// batch norm. `first_layer`: x is read as it is, and needs no gradient. `wgrad`: the weight gradient is needed.
KernelChoice choose(const ConvGeometry& g, const Tensor& x, const Tensor& w, const Conv& conv, bool alone,
                    bool first_layer, bool wgrad) {
    using enum KernelFamily;
    const auto filters_are = [&](int size) { return g.r == size && g.s == size; };
    if (conv.groups > 1) return {groups, "more than one group: plain multiply-adds", g};

    const bool linear_layer = filters_are(1) && g.stride == Axes(1) && g.pad == Axes(0) && alone;
    if (x.dtype() == DType::f32 && w.dtype() == DType::f32 && linear_layer && g.to_c <= kMaxLinearResults &&
        g.pixels() > 0 && g.pixels() <= kMaxLinearRows && g.pixels() * g.from_c < INT32_MAX - 256)
        return {linear, "linear layer with at most 16 results: tiles would be mostly empty", g};
    if (x.dtype() != DType::bf16) return {portable, "images in f32: kernels for Hopper GPUs take bf16", g};
    if (!gpu_traits().hopper_kernels) return {portable, "no Hopper GPU, or its kernels are off or not built", g};

    const bool tile_width = g.from_w == 8 || g.from_w == 16 || g.from_w == 32;
    const bool fills_tiles = filters_are(3) && g.stride == Axes(1) && g.pad == Axes(1) && g.dilation == Axes(1) &&
                             tile_width && g.from_h % 8 == 0 && g.pixels() > 0 && g.pixels() < INT32_MAX;
    const auto [fewer, more] = std::minmax({g.from_c, g.to_c}); // the data gradient exchanges from_c and to_c
    const auto covered = [](int channels) { return channels == 32 || channels == 64 || channels == 128; };
    // Beside filters for 128 channels, only tiles 8 pixels wide fit into shared memory. No kernel joins 128 and 32.
    const bool filters_fit = covered(fewer) && covered(more) && (more < 128 || (fewer > 32 && g.from_w == 8));
    if (fills_tiles && filters_fit && g.from_h % rows_of_tile(g.from_w) == 0)
        return {hopper, "3x3 filters that stay in shared memory, images as wide as a tile", g};

    const bool packable = cell_channels(g.from_c) > 0
                              ? (filters_are(3) || (filters_are(1) && (g.from_c % 64 == 0 || first_layer))) &&
                                    g.stride.w <= 2
                              : first_layer && g.r <= kMaxTaps && g.s * g.from_c <= kSmallCell && g.dilation.w == 1;
    if (packable && g.to_c % 64 == 0 && g.stride.h <= 2)
        if (const std::optional<PackedPlan> plan = packed_plan_of(g))
            return {packed, "24, 32 or multiples of 64 channels, or a first layer: packed for bulk copies", g, plan};
    if (wgrad && fills_tiles && g.from_c % 32 == 0 && g.to_c % 32 == 0)
        return {hopper_wgrad, "weight gradient of multiples of 32 channels, images as wide as a tile", g};
    return {portable, "no kernels for Hopper GPUs cover the shape", g};
}

/// Returns the choice, and notes it for --profile.
KernelChoice noted(const char* op, const Tensor& x, const Tensor& w, KernelChoice choice) {
    constexpr const char* kNames[] = {"groups", "linear", "hopper", "packed_hopper", "hopper_wgrad", "portable"};
    if (context().profile)
        context().profile->note({op, kNames[size_t(choice.family)], choice.reason, x.shape(), w.shape(), {}, x.dtype()});
    return choice;
}

} // namespace

KernelChoice choose_conv2d(const Call& call) {
    using O = Conv2dOp;
    const auto& a = call.attrs.as<O>();
    const Tensor &x = call.in[O::x], &w = call.in[O::w];
    const bool x_norm = bool(a.x_norm.given(call.in)), y_norm = bool(a.y_norm.given(call.in));
    const bool alone = !a.with_stats && !x_norm && !y_norm;
    const ConvGeometry g = geometry_of(x.shape(), call.out[O::y].shape(), w, a.conv);
    return noted("conv2d", x, w, choose(g, x, w, a.conv, alone, !x_norm, false));
}

KernelChoice choose_conv2d_grad(const Call& call) {
    using O = Conv2dGradOp;
    const auto& a = call.attrs.as<O>();
    const Tensor &dy = call.in[O::dy], &w = call.in[O::w], &x = a.data ? call.out[O::dx] : call.in[O::x];
    const bool alone = !call.in[O::y].defined() && !call.in[O::addend].defined();
    const bool first_layer = !a.data && !a.x_norm.given(call.in);
    const ConvGeometry g = geometry_of(x.shape(), dy.shape(), w, a.conv);
    return noted("conv2d_grad", x, w, choose(g, x, w, a.conv, alone, first_layer, a.filters));
}

} // namespace rg::RG_GPU
