// Ops on single elements (activations, arithmetic, conversions, dropout), ops that copy elements to another shape
// (slice, concat, upsample), and sums and means. An image tensor is [n h w c]: n images of h x w
// pixels with c channels.
#pragma once

#include "core/ops/norm.h"

namespace rg {

/// Applies an activation to each element; `none` returns x itself. A NaN stays NaN. The backward pass of most kinds
/// needs only the result, so x can be freed; that of gelu, silu, hardswish and hardsigmoid needs x.
///
/// The kinds for which is_fusible() is true can be part of another op: of batch_norm(), with BatchNorm::activation, and
/// in plans also of add() (core/fuse.cpp). The other kinds always take a pass of their own over the elements.
Tensor activation(const Tensor& x, Activation activation);
/// Return true for none, ReLU and, unless the context has a device, the other kinds without exponentials. Convolution
/// kernels evaluate batch norms with activations. More kinds in these kernels would need more registers, and so slow
/// down networks with ReLU too.
bool is_fusible(Activation activation);
bool is_fusible(Activation activation, bool on_device);
/// Returns max(0, x).
Tensor relu(const Tensor& x);
/// Returns x if x > 0, else slope * x (Maas, Hannun and Ng, 2013). Throws Error if the slope is negative or not finite.
Tensor leaky_relu(const Tensor& x, float slope = 0.01f);
/// Returns min(max(0, x), 6) (Howard et al., 2017).
Tensor relu6(const Tensor& x);
/// Returns x * P(X <= x) for a standard normal X (Hendrycks and Gimpel, 2016). Uses the error function, and not the
/// approximation by tanh.
Tensor gelu(const Tensor& x);
/// Returns x * sigmoid(x), also known as swish (Elfwing, Uchibe and Doya, 2017).
Tensor silu(const Tensor& x);
/// Returns x * hardsigmoid(x) (Howard et al., 2019).
Tensor hardswish(const Tensor& x);
/// Returns 1 / (1 + exp(-x)).
Tensor sigmoid(const Tensor& x);
/// Returns relu6(x + 3) / 6.
Tensor hardsigmoid(const Tensor& x);
Tensor tanh(const Tensor& x);
/// Returns log(1 + exp(x)) (Dugas et al., 2001). -softplus(-x) is the logarithm of sigmoid(x). Takes exponentials of
/// negative numbers only, so it does not overflow.
Tensor softplus(const Tensor& x);

// Functions outside of their domain follow IEEE 754: log(0) is minus infinity, a division by 0 is an infinity or, of 0,
// a NaN, and the logarithm or root of a negative number is a NaN. Their gradients do so too: that of sqrt() at 0 is
// infinite.
Tensor exp(const Tensor& x);
/// Returns the natural logarithm.
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
/// Returns |x|. Its gradient at 0 is 0.
Tensor abs(const Tensor& x);
/// Returns x * x.
Tensor square(const Tensor& x);
/// Returns 1 / x.
Tensor reciprocal(const Tensor& x);

// Arithmetic on two tensors of the same type. One of them may be smaller than the other, if it has the other's shape
// but for extents of 1, between which all extents are 1; its values then repeat along these axes. Missing first extents
// are 1, so a vector [c] has a value per channel. For images [n h w c], [n c] stands for [n 1 1 c]. Throws Error if
// shapes do not fit together, or types differ.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
/// Returns a / b. If a is the smaller tensor, multiplies it by 1 / b, which rounds twice.
Tensor div(const Tensor& a, const Tensor& b);
/// Return the larger or the smaller element, or a NaN if one of them is. Where both are equal, each gets half of the
/// gradient.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);
/// Returns minimum(maximum(x, low), high). Throws Error unless low <= high.
Tensor clamp(const Tensor& x, float low, float high);

/// Returns the sum of all elements as a scalar, which is f32, or f64 if x is f64. Adds in a fixed order, in double.
Tensor sum(const Tensor& x);
/// Returns sum(x) divided by the number of elements, or 0 if there are none, like the loss of an empty mini-batch.
Tensor mean(const Tensor& x);
/// Return the sums or the means over some axes, in the type of x. These axes keep an extent of 1: for x [n k], sum(x,
/// {1}) is [n 1]. So the result fits x in arithmetic, as in x / sum(x, {1}). Axis -1 is the last one. Throw Error if x
/// lacks an axis.
Tensor sum(const Tensor& x, std::initializer_list<int> axes);
Tensor mean(const Tensor& x, std::initializer_list<int> axes);

/// Returns x times a constant.
Tensor scale(const Tensor& x, float factor);
/// Returns x times a scalar tensor, which is f32, or f64 if x is f64. Gradients also flow to the factor.
Tensor scale(const Tensor& x, const Tensor& factor);
/// Returns x plus a constant.
Tensor shift(const Tensor& x, float by);

// Operators for the functions above.
inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator+(const Tensor& a, float b) { return shift(a, b); }
inline Tensor operator-(const Tensor& a, float b) { return shift(a, -b); }
inline Tensor operator*(const Tensor& a, float b) { return scale(a, b); }
inline Tensor operator/(const Tensor& a, float b) { return scale(a, 1 / b); }
inline Tensor operator-(const Tensor& a) { return scale(a, -1); }
inline Tensor operator+(float a, const Tensor& b) { return shift(b, a); }
Tensor operator-(float a, const Tensor& b);
inline Tensor operator*(float a, const Tensor& b) { return scale(b, a); }
inline Tensor operator/(float a, const Tensor& b) { return scale(reciprocal(b), a); }

/// Converts each element to the type `to`: f32, bf16 or f64. Returns x itself if it has that type already.
Tensor cast(const Tensor& x, DType to);

/// Returns a copy of the elements [begin, begin + shape.numel()) of x, counted in the order of x's memory: image i of
/// [n h w c] begins at i * h * w * c. Gradients flow through this op, but not through the view that Tensor::slice()
/// makes. The backward pass writes a gradient with as many elements as x, even for a small slice.
Tensor slice(const Tensor& x, int64_t begin, const Shape& shape);

/// Concatenates 1 to kMaxInputs tensors over channels, the last extent. Throws Error if they differ in another
/// extent or in their type; see cast().
Tensor concat(std::initializer_list<Tensor> tensors);
Tensor concat(std::span<const Tensor> tensors);

/// Returns [n h*factor w*factor c]: each pixel of x [n h w c] becomes a square of factor x factor equal pixels (nearest
/// neighbour). The factor is 1 to kMaxInputs.
Tensor upsample(const Tensor& x, int64_t factor);

/// Sets each element to zero with the given probability, and divides the other elements by 1 - probability (inverted
/// dropout, Srivastava et al., 2014). The seed, i32 [2], and `stream` determine which elements become zero. Use another
/// seed in each step and on each rank: with a constant one, each replay of a traced function sets the same elements to
/// zero. Layers that share a seed need different values of `stream`, below 2^24.
Tensor dropout(const Tensor& x, float probability, const Tensor& seed, uint32_t stream = 0);
/// Returns a seed as dropout() takes it, i32 [2], in host memory. For a device, copy it with Tensor::to_device().
Tensor seed_tensor(uint64_t seed);

// ---- ops: their inputs, results and attributes ----

#define RG_ELEMENT_OPS(X)                                                                                              \
    X(activation) X(activation_grad) X(add) X(binary) X(sum) X(sum_grad) X(scale) X(cast) X(slice) X(slice_grad)       \
    X(concat) X(concat_grad) X(dropout)
RG_ELEMENT_OPS(RG_DECLARE_OP)

struct ActivationOp {
    enum In { x };
    Activation activation = Activation::relu;
};
/// Computes dx: dy times the derivative of the activation. `from` is the value that determines the derivative: x
/// or the result of the activation, according to RG_ACTIVATIONS. If `a` is defined, also computes a_dgamma and a_dbeta,
/// the sums of dx that BatchNormGradSumsOp defines. The same holds for b, b_dgamma and b_dbeta. A plan uses these sums
/// for the backward pass of batch norms before the activation, as in relu(batch_norm(a) + batch_norm(b)).
struct ActivationGradOp {
    enum In { dy, from, a, a_stats, b = NormAt<a_stats>::kEnd, b_stats };
    enum Out { dx, a_dgamma, a_dbeta, b_dgamma, b_dbeta };
    Activation activation = Activation::relu;
    NormAt<a_stats, a> a_norm = {}; // without an activation
    NormAt<b_stats, b> b_norm = {};
};
struct AddOp {
    enum In { a, b, a_stats, b_stats = NormAt<a_stats>::kEnd };
    Activation activation = {};     // applied to the sum
    NormAt<a_stats, a> a_norm = {}; // applied to a as it is read; without an activation
    NormAt<b_stats, b> b_norm = {};
};
/// b may be smaller than a; see Repeats. AddOp, which plans fuse with other ops, adds tensors of the same shape.
struct BinaryOp {
    enum In { a, b };
    Binary kind = Binary::add;
};
/// Sums the elements of x, or of x * times, for which Repeats gives the same element of y, which has this shape. If
/// `mean`, divides by their number.
struct SumOp {
    enum In { x, times };
    bool mean = false;
    Shape shape = {};
};
/// Computes dx, the gradient of the input x of SumOp: repeats the elements of dy.
struct SumGradOp {
    enum In { dy };
    Shape shape = {}; // shape of dx
    DType type = DType::f32;
    bool mean = false;
};
/// Computes x * factor + shift.
struct ScaleOp {
    enum In { x, factor };
    float constant = 1; // the factor, if that input is undefined
    float shift = 0;
};
struct CastOp {
    enum In { x };
    DType to = DType::f32;
};
/// Copies `count` elements of x, which has one extent, from element `begin` on.
struct SliceOp {
    enum In { x };
    int64_t begin = 0, count = 0;
};
/// Computes dx [count]: the elements of dy begin at element `begin` of dx; the other elements are zero.
struct SliceGradOp {
    enum In { dy };
    int64_t begin = 0, count = 0;
};
struct ConcatOp {
    enum In { x0 }; // the first input; the others have the next indices
};
/// Computes the gradient of one input of ConcatOp: the channels [begin, begin + count) of dy.
struct ConcatGradOp {
    enum In { dy };
    int64_t begin = 0, count = 0;
};
struct DropoutOp {
    enum In { x, seed };
    float probability = 0;
    uint32_t stream = 0;
};

/// Says how the elements of a small tensor [groups period] repeat in a large one [groups repeats period].
struct Repeats {
    int64_t groups = 1, repeats = 1, period = 1;
};
/// Returns the shape with as many extents as `large`: adds first extents of 1, or makes [n c] to [n 1 1 c].
Shape aligned(const Shape& small, const Shape& large);
/// Throws Error if `small` is not as add() describes it.
Repeats repeats_of(const char* op, const Shape& small, const Shape& large);

/// Returns the number of channels of t, its last extent.
inline int64_t channels_of(const Tensor& t) { return t.extent(t.shape().rank() - 1); }
/// Returns the number of bytes in a row of t, that is, in the channels of one pixel or sample.
inline int64_t row_bytes(const Tensor& t) { return channels_of(t) * size_of(t.dtype()); }

} // namespace rg
