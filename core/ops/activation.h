// The kinds of activations. Has no code, so that the kernels of core/cpu/*_isa.cpp can include it; see core/cpu/simd.h.
#pragma once

namespace rg {

enum class Activation { relu, leaky_relu, gelu, silu, sigmoid, tanh };

} // namespace rg
