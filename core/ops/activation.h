// The lists of functions of one element and of two. This header has no code that kernels call, because
// core/cpu/*_isa.cpp include it (through core/cpu/kernels.h). These files are compiled once per instruction set and
// must not call inline functions of a shared header; core/cpu/simd.h explains why.
#pragma once

namespace rg {

/// X(name, from, value, gradient) defines an activation of an element x. `value` is the result y, and `gradient` is dy
/// times the derivative. `from` is x or y: the one that `gradient` reads, and that the backward pass so keeps. A line
/// is expanded in three places, with the functions that each defines for its type: double for the reference
/// (core/ops/activation_ops.cpp), vectors for CPU kernels (core/cpu/elements_isa.cpp, simd_math.h), and float for GPU
/// kernels (gpu/elements.cu). of(c) is a constant of that type. larger(a, b) and smaller(a, b) are b if one of them is
/// a NaN. At the kinks, the derivatives are those of PyTorch.
///
/// The fusible kinds, which need no exponentials, can be part of other ops (see is_fusible()). A fused batch norm
/// computes the gradient from x alone. So where a fusible kind reads y, x in its place gives the same gradient.
// clang-format off
#define RG_FUSIBLE_ACTIVATIONS(X)                                                                                      \
    X(none, y, x, dy)                                                                                                  \
    X(relu, y, larger(of(0), x), y <= of(0) ? of(0) : dy)                                                              \
    X(leaky_relu, y, x <= of(0) ? slope * x : x, y <= of(0) ? slope * dy : dy)                                         \
    X(relu6, y, smaller(of(6), larger(of(0), x)), y <= of(0) ? of(0) : y >= of(6) ? of(0) : dy)                        \
    X(hardswish, x, x * smaller(of(6), larger(of(0), x + of(3))) * of(1.0 / 6),                                        \
      x < of(-3) ? of(0) : x <= of(3) ? dy * (x * of(1.0 / 3) + of(0.5)) : dy)                                         \
    X(hardsigmoid, x, smaller(of(6), larger(of(0), x + of(3))) * of(1.0 / 6),                                          \
      x <= of(-3) ? of(0) : x >= of(3) ? of(0) : dy * of(1.0 / 6))
#define RG_ACTIVATIONS(X)                                                                                              \
    RG_FUSIBLE_ACTIVATIONS(X)                                                                                          \
    X(gelu, x, x * normal_cdf(x), dy * (normal_cdf(x) + x * normal_pdf(x)))                                            \
    X(silu, x, x * logistic(x), dy * (logistic(x) * (of(1) + x * (of(1) - logistic(x)))))                              \
    X(sigmoid, y, logistic(x), dy * (y * (of(1) - y)))                                                                 \
    X(tanh, y, hyperbolic_tangent(x), dy * (of(1) - y * y))                                                            \
    X(softplus, x, larger(x, of(0)) + logarithm_of_one_plus(exponential(-absolute(x))), dy * logistic(x))              \
    X(exp, y, exponential(x), dy * y)                                                                                  \
    X(log, x, logarithm(x), dy / x)                                                                                    \
    X(sqrt, y, square_root(x), dy / (of(2) * y))                                                                       \
    X(abs, x, absolute(x), x > of(0) ? dy : x < of(0) ? -dy : of(0))                                                   \
    X(square, x, x * x, dy * (of(2) * x))                                                                              \
    X(reciprocal, y, of(1) / x, -dy * (y * y))
// clang-format on

/// X(name, value, ONNX operator) defines an op on an element a and an element b.
// clang-format off
#define RG_BINARIES(X)                                                                                                 \
    X(add, a + b, "Add")                                                                                               \
    X(sub, a - b, "Sub")                                                                                               \
    X(mul, a * b, "Mul")                                                                                               \
    X(div, a / b, "Div")                                                                                               \
    X(maximum, a != a ? a : larger(a, b), "Max")                                                                       \
    X(minimum, a != a ? a : smaller(a, b), "Min")
// clang-format on

/// An activation with its parameter. A kind alone converts to it.
struct Activation {
#define RG_KIND(name, ...) name,
    enum Kind { RG_ACTIVATIONS(RG_KIND) };
#undef RG_KIND
    constexpr Activation(Kind kind_ = none, float slope_ = 0.01f) : kind(kind_), slope(slope_) {}
    Kind kind;
    float slope; // used only by leaky_relu
    bool operator==(const Activation&) const = default;
};
#define RG_KIND(name, ...) Activation::name,
constexpr Activation::Kind kActivations[] = {RG_ACTIVATIONS(RG_KIND)};
#undef RG_KIND
#define RG_KIND(name, ...) name,
enum class Binary { RG_BINARIES(RG_KIND) };
#undef RG_KIND
#define RG_KIND(name, ...) Binary::name,
constexpr Binary kBinaries[] = {RG_BINARIES(RG_KIND)};
#undef RG_KIND

} // namespace rg
