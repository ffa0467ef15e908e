// Helpers for the reference implementations, which define every op by plain loops.
//
// The loops follow the formulas, so that a reader can check them; they are not fast. They compute in double, and round
// each result to its type. A batch norm that is fused into another op is also rounded. Tests compare each backend with
// these loops, and check the backward rules against finite differences.
#pragma once

#include "core/op.h"
#include "core/ops/activation.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace rg::ref {

using Values = std::vector<double>;

/// Returns the values of a tensor as doubles.
inline Values read(const Tensor& t) {
    const Tensor wide = t.to(DType::f64);
    const auto span = wide.span<double>();
    return {span.begin(), span.end()};
}

/// Rounds the values to the type of t and stores them.
inline void write(const Tensor& t, const Values& values) {
    const Tensor narrow = Tensor::of<double>(t.shape(), values).to(t.dtype());
    if (t.bytes()) std::copy_n(narrow.bytes_data(), t.bytes(), t.bytes_data());
}

/// Calls f with a zero of the type of t: float, or double in checks.
template <class F>
void with_precise(const Tensor& t, F f) {
    t.dtype() == DType::f64 ? f(double{}) : f(float{});
}

/// Computes the flat index of an element in a tensor of four extents.
struct Index4 {
    explicit Index4(const Shape& s) : b(s[1]), c(s[2]), d(s[3]) {}
    size_t operator()(int64_t i, int64_t j, int64_t k, int64_t l) const {
        return size_t(((i * b + j) * c + k) * d + l);
    }
    int64_t b, c, d;
};

/// Return the activation of x, and dy times its derivative. `from` is x, or for kinds whose gradient is computed from
/// the result, x or the result. Defined in activation_ops.cpp.
double activated(Activation, double x);
double activation_gradient(Activation, double dy, double from);
/// Returns the result of arithmetic on two elements. Defined in activation_ops.cpp.
double combined(Binary, double a, double b);

/// Returns 1 / (1 + exp(-x)). Computes only exp(-|x|), which cannot overflow.
inline double logistic(double x) {
    const double e = std::exp(-std::abs(x));
    return (x < 0 ? e : 1) / (1 + e);
}

} // namespace rg::ref
