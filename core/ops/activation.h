// The kinds of activations. This header has no code, because core/cpu/*_isa.cpp include it (through
// core/cpu/kernels.h). These files are compiled once per instruction set and must not call inline functions of a shared
// header; core/cpu/simd.h explains why.
#pragma once

namespace rg {

enum class Activation { relu, leaky_relu, gelu, silu, sigmoid, tanh };

} // namespace rg
