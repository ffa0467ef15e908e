// Helpers for the rows of the op table: checks of shapes, and the macro that makes a row.
#pragma once

#include "core/op.h"
#include "core/ops/activation.h"
#include "core/scope.h"

namespace rg {

using In = std::span<const Tensor>;

/// Declares two kernels of an op: the reference, defined in core/ops/, and the CPU kernel, defined in core/cpu/.
#define RG_DECLARE_KERNELS(op)                                                                                         \
    namespace ref {                                                                                                    \
    void op(const Call&);                                                                                              \
    }                                                                                                                  \
    namespace cpu {                                                                                                    \
    void op(const Call&);                                                                                              \
    }
/// Makes the reference of an op its CPU kernel.
#define RG_RUN_REFERENCE(op)                                                                                           \
    void cpu::op(const Call& call) { ref::op(call); }
/// Defines the row of an op. Sets its name, its two kernels and the function infer_NAME, and the fields in __VA_ARGS__.
#define RG_ROW(op, ...)                                                                                                \
    constinit const OpRow rows::op {                                                                                   \
        .name = #op, .reference = ref::op, .cpu = cpu::op, .infer = infer_##op, __VA_ARGS__                            \
    }

/// Returns an optional argument that only the steps of a plan have.
constexpr Argument fused(const char* name, Type type = Type::precise) { return {name, type, Presence::fused}; }
/// Lists the arguments that NormAt stands for.
#define RG_FUSED_NORM(x) fused(#x "_stats"), fused(#x "_gamma"), fused(#x "_beta")

inline void expect_rank(const char* op, const char* name, const Tensor& t, int rank) {
    RG_CHECK(t.shape().rank() == rank, op, ": ", name, " needs ", rank, " extents, got ", t.shape().str());
}

inline void expect_shape(const char* op, const char* name, const Tensor& t, const Shape& shape) {
    RG_CHECK(t.shape() == shape, op, ": ", name, " needs shape ", shape.str(), ", got ", t.shape().str());
}

/// Throws Error unless t has four extents. Only the first, the number of images, may be zero.
inline void expect_image(const char* op, const char* name, const Tensor& t) {
    expect_rank(op, name, t, 4);
    RG_CHECK(t.extent(1) >= 1 && t.extent(2) >= 1 && t.extent(3) >= 1, op, ": ", name,
             " has an empty extent: ", t.shape().str());
}

/// Returns the type of parameters, statistics and sums that belong to activations x: f32 if x is bf16, else that of x.
inline DType precise(const Tensor& x) { return x.dtype() == DType::bf16 ? DType::f32 : x.dtype(); }

/// Returns the number of windows that fit into `extent` values and `pad` more on each side, if each window begins
/// `stride` values after the one before. A window consists of `size` values, at distances of `dilation`. Throws Error
/// if an argument is impossible or no window fits.
inline int64_t window_count(const char* op, int64_t extent, int64_t size, int64_t stride, int64_t pad,
                            int64_t dilation = 1) {
    RG_CHECK(stride >= 1 && pad >= 0 && size >= 1 && dilation >= 1, op, ": window ", size, ", stride ", stride,
             ", padding ", pad, ", dilation ", dilation, " are not possible");
    const int64_t window = (size - 1) * dilation + 1;
    RG_CHECK(extent + 2 * pad >= window, op, ": the window (", window, ") exceeds the padded input (", extent + 2 * pad,
             ")");
    return (extent + 2 * pad - window) / stride + 1;
}

inline OutputSpecs like(const Tensor& t) { return {{{t.shape(), t.dtype()}}}; }

struct BatchNormTensors;
/// Defined in norm.cpp. Checks the tensors of a batch norm. Returns false if all three are undefined, as in an op where
/// the batch norm is optional. Throws Error if only some are undefined, or if a shape is wrong.
bool expect_norm(const char* op, int64_t channels, const BatchNormTensors& norm);

/// Defined in activation_ops.cpp. Throws Error unless another op can take the activation, and its slope is possible.
void expect_fusible(const char* op, Activation activation);
/// Defined in activation_ops.cpp. Throws Error if a batch norm has an activation.
void expect_no_activation(const char* op, const BatchNormTensors& norm);

/// Throws Error if a value is negative or not below `end`. Skips tensors on a device.
inline void check_below(int64_t end, const Tensor& values, const char* what) {
    if (values.device()) return;
    const auto all = values.span<int32_t>();
    for (size_t i = 0; i < all.size(); ++i)
        RG_CHECK(all[i] >= 0 && all[i] < end, what, " ", all[i], " of sample ", i, " lies outside [0, ", end, ")");
}

} // namespace rg
