// What the tests do with a case of op_cases.h: draw its inputs, put guards around buffers, compare results, and judge
// a gradient by finite differences.
//
// Nothing here asserts: results are values and texts, so that any thread may compute them and the test can also show
// that a wrong gradient is refused.
#pragma once

#include "core/context.h"
#include "tests/op_cases.h"

#include <string>

namespace rg {

/// "conv2d x[2 5 5 3]#1 w[8 3 3 3]#1 (case 7)": the op, its inputs, how they are drawn, and the index in op_cases().
std::string describe(const OpCase& c);

/// The inputs of a case, from its seed: floating-point ones of the given type.
std::vector<Tensor> draw_inputs(const OpCase& c, DType type, uint64_t seed = 1);

/// A tensor in the middle of a larger block whose margins must stay as they are.
class Guarded {
public:
    /// Contents: NaN, or 0xEE for whole numbers. `margin` elements on each side.
    Guarded(const Shape& shape, DType type, int64_t margin);
    /// The same with the values of `source`, which must not change if `constant`.
    Guarded(const Tensor& source, int64_t margin, bool constant);

    Tensor value;
    /// Whether the margins, and the values if constant, are untouched.
    bool intact() const;

private:
    Tensor whole_, copy_;
};

/// Runs a kernel, or that of a backend, on guarded buffers. Gives the outputs; `error` says which guard broke.
struct KernelRun {
    std::vector<Tensor> results;
    std::string error;
};
KernelRun run_kernel(const OpCase& c, std::span<const Tensor> inputs, Kernel kernel, int64_t margin);
KernelRun run_kernel(const OpCase& c, std::span<const Tensor> inputs, Backend backend, int64_t margin);

/// Empty when `got` has the values of `want` within the tolerance, and NaN and infinities in the same places. The
/// largest error does not count towards the root mean square, so that one of a few elements may have it.
std::string differs(const Tensor& got, const Tensor& want, const Tolerance& tolerance);
bool same_bits(const Tensor& a, const Tensor& b);

/// Floats that equal others if each differs by at most 1e-5 of the largest magnitude: results worked out by hand, of
/// a few roundings.
struct Floats : std::vector<float> {
    using vector::vector;
    bool operator==(const Floats& other) const;
};
Floats list(const Tensor& t);

/// The derivative of <r, f(x)> for a case's op f and a fixed random r, in the inputs x that are differentiable.
class GradientCase {
public:
    explicit GradientCase(const OpCase& c, DType type = DType::f64);
    /// Whether the gradients of this case can be checked by differences: differentiable, smooth at its inputs.
    static bool possible(const OpCase& c);
    /// Products that a forward call takes, roughly: what it costs to judge.
    static double work(const OpCase& c);

    /// By the backward rule, through the tape on the current context's backend; undefined where not differentiable.
    std::vector<Tensor> backward() const;
    /// Compares a gradient of input i with central differences at two steps, along random directions (this is the test
    /// <r, J v> = <J^T r, v>) and, if asked, in single entries. Empty when they agree. On the reference backend.
    std::string judge(size_t i, const Tensor& gradient, bool entries) const;

private:
    double slope(size_t i, std::span<const double> direction, double step) const;
    Tensor forward(std::span<const Tensor> inputs) const;

    const OpCase& case_;
    std::vector<Tensor> inputs_;
    Tensor weights_; // r, f64
};

} // namespace rg
