// Functions that tests apply to a case of op_cases.h: they draw its inputs, put guards around buffers, compare results,
// and judge a gradient by finite differences.
//
// Nothing here asserts. The functions return values and error texts, so any thread may call them, and a test can also
// show that they refuse a wrong gradient.
#pragma once

#include "core/context.h"
#include "tests/op_cases.h"

#include <string>

namespace rg {

/// Returns a text such as "conv2d x[2 5 5 3]#1 w[8 3 3 3]#1 (case 7)": the op, its inputs with their shapes, the number
/// of the Draw of each, and the index in op_cases().
std::string describe(const OpCase& c);

/// Returns random inputs for a case; the same seed gives the same inputs. Floating-point inputs get the type `type`,
/// except where the case or its Draw demands another.
std::vector<Tensor> draw_inputs(const OpCase& c, DType type, uint64_t seed = 1);

/// Holds a tensor in the middle of a larger block, and detects writes to the margins of the block.
class Guarded {
public:
    /// Fills the tensor with NaN if it is of floating-point type, and with bytes 0xEE otherwise. The margins have
    /// `margin` elements on each side.
    Guarded(const Shape& shape, DType type, int64_t margin);
    /// Fills the tensor with the values of `source`. If `constant`, also detects changes of these values.
    Guarded(const Tensor& source, int64_t margin, bool constant);

    Tensor value;
    /// Returns true if the margins are unchanged, and the values too if they are constant.
    bool intact() const;

private:
    Tensor whole_, copy_;
};

/// Holds a context, which is that of the thread until the end of the scope.
struct InContext {
    Context context;
    ContextScope scope{context};
};

/// The outputs of a kernel. `error` names the buffers whose guards were damaged; it is empty if there are none.
struct KernelRun {
    std::vector<Tensor> results;
    std::string error;
};
/// Says that an output has the memory of an input; {-1, -1} for none.
struct Alias {
    int out = -1, in = -1;
};
/// Returns the aliases that OpRow::may_be allows for an output and an input of the same shape and type.
std::vector<Alias> allowed_aliases(const OpCase& c, std::span<const Tensor> inputs);
/// Runs a kernel, or the kernel of a backend, on guarded buffers (see Guarded). Outputs have their own memory, except
/// the output of `alias` and those of OpRow::in_place.
KernelRun run_kernel(const OpCase& c, std::span<const Tensor> inputs, Kernel kernel, int64_t margin, Alias alias = {});
KernelRun run_kernel(const OpCase& c, std::span<const Tensor> inputs, Backend backend, int64_t margin,
                     Alias alias = {});

/// Returns "" if `got` equals `want` within the tolerance and has NaN and infinities in the same places, else an error
/// text. The root mean square leaves out the largest error, so that a single element of a small tensor may reach
/// Tolerance::max.
std::string differs(const Tensor& got, const Tensor& want, const Tolerance& tolerance);
bool same_bits(const Tensor& a, const Tensor& b);

/// A list of floats for comparison with results that were worked out by hand. Two lists are equal if no pair of
/// elements differs by more than 1e-5 of the largest magnitude, which allows for a few roundings.
struct Floats : std::vector<float> {
    using vector::vector;
    bool operator==(const Floats& other) const;
};
Floats list(const Tensor& t);

/// Return tensors of the given shape and values.
template <class... Values>
Tensor floats(const Shape& shape, Values... values) {
    const float list[] = {float(values)...};
    return Tensor::of<float>(shape, list);
}

template <class... Values>
Tensor integers(const Shape& shape, Values... values) {
    const int32_t list[] = {values...};
    return Tensor::of<int32_t>(shape, list);
}

/// Checks the gradient of <r, f(x)>, where f is the op of a case, r is a fixed random tensor, and x is each input that
/// is differentiable.
class GradientCase {
public:
    explicit GradientCase(const OpCase& c, DType type = DType::f64);
    /// Returns true if finite differences can check the gradients of this case: the op has a backward rule, and is
    /// smooth at the inputs.
    static bool possible(const OpCase& c);
    /// Returns roughly the number of products in a forward call, as a measure of the cost of judge().
    static double work(const OpCase& c);

    /// Returns the gradient of every input, which the tape computes by the backward rule on the current context's
    /// backend. The gradient of an input that is not differentiable is undefined.
    std::vector<Tensor> backward() const;
    /// Compares a gradient of input i with central differences on the reference backend. Uses two step sizes, along
    /// random directions v: this tests <r, J v> = <J^T r, v>, where J is the Jacobian of f. If `entries`, also compares
    /// single entries. Returns "" if all agree, else an error text.
    std::string judge(size_t i, const Tensor& gradient, bool entries) const;

private:
    double slope(size_t i, std::span<const double> direction, double step) const;
    Tensor forward(std::span<const Tensor> inputs) const;

    const OpCase& case_;
    std::vector<Tensor> inputs_;
    Tensor weights_; // r, f64
};

} // namespace rg
