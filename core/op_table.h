// THE op table: one row per op. Dispatch, tape, profile, tests and benchmarks iterate over it.
//
// A new op is a name in RG_OPS, a row in ops.cpp, a loop in reference.cpp, a kernel in cpu/, and a case in
// tests/op_cases.h; nothing else names it. Backward rules are themselves written in ops.
#pragma once

#include "core/tensor.h"

#include <array>
#include <span>

namespace rg {

#define RG_OPS(X)                                                                                                      \
    X(conv2d) X(conv2d_dgrad) X(conv2d_wgrad) X(channel_stats) X(rank_stats) X(batch_norm) X(batch_norm_sums)          \
    X(rank_sums) X(batch_norm_grad) X(running_update) X(relu) X(relu_grad) X(add) X(cast) X(slice) X(slice_grad)       \
    X(max_pool2d) X(max_pool2d_grad) X(avg_pool2d) X(avg_pool2d_grad) X(softmax) X(softmax_grad) X(cross_entropy)      \
    X(cross_entropy_grad) X(mse_loss) X(mse_loss_grad) X(dropout) X(sgdm_update) X(adam_update) X(first_non_finite)    \
    X(augment) X(norm_conv2d) X(conv2d_norm) X(conv2d_norm_grad) X(norm_max_pool2d) X(norm_avg_pool2d)                 \
    X(norm_pool2d_grad) X(norm_add) X(norm_add_grad) X(cross_entropy_with_grad)

enum class Op : uint8_t {
#define RG_OP_ENUM(name) name,
    RG_OPS(RG_OP_ENUM)
#undef RG_OP_ENUM
        count
};

constexpr int kMaxInputs = 12, kMaxOutputs = 5;

/// The plain values that an op takes beside tensors. One struct serves all rows; a row reads what it needs. A plan
/// keeps them: what varies from call to call (learning rate, seed) is a small tensor instead.
struct Attrs {
    int64_t stride = 1, pad = 0, window = 0; // convolution, pooling (conv2d_norm: max pooling of its result)
    // What a gradient restores: of the input; of the filter (conv2d_wgrad). augment, slice: of the result.
    int64_t height = 0, width = 0;
    int64_t begin = 0;                       // slice and its gradient: the first element
    bool stats = false;                      // conv2d: also the batch statistics of the result (gradients: sums)
    bool relu = false;                       // batch_norm and its gradients, norm_add: with ReLU
    bool frozen = false;                     // batch_norm: the statistics are constants
    bool input_relu = false;                 // conv2d_norm_grad: the input's normalisation has ReLU
    float epsilon = 0;                       // batch_norm, adam_update
    float rate = 0;                          // dropout probability, label smoothing, running-average momentum
    uint32_t stream = 0;                     // dropout: which of the masks of its seed
    DType dtype = DType::f32;                // cast, augment
    bool reflect = false;                    // augment: mirrored outside of the image, not black
    float momentum = 0, weight_decay = 0;    // updates of the parameters
    bool nesterov = false;
    double beta1 = 0, beta2 = 0; // adam_update; 1 - beta has to be exact
    bool operator==(const Attrs&) const = default;
};

/// One invocation. Undefined inputs are absent options (a bias).
struct Call {
    const Attrs& attrs;
    std::span<const Tensor> in;
    std::span<const Tensor> out;
};

struct OutputSpec {
    Shape shape;
    DType dtype = DType::f32;
};
using OutputSpecs = std::array<OutputSpec, kMaxOutputs>;

/// What a backward rule sees of its op's invocation, and where it puts its results.
class Backward {
public:
    virtual const Attrs& attrs() const = 0;
    virtual const Tensor& in(int i) const = 0;
    virtual const Tensor& out(int i) const = 0;
    /// Gradient of the loss with respect to output 0.
    virtual const Tensor& dy() const = 0;
    /// Whether anybody needs the gradient of input i.
    virtual bool wants(int i) const = 0;
    /// Where the gradient of input i should be written, when it is the first contribution to a caller's buffer;
    /// undefined otherwise. Pass it to run() as the output.
    virtual Tensor into(int i) const = 0;
    /// Contributes to the gradient of input i: the first contribution is taken as it is, later ones are added.
    virtual void give(int i, const Tensor& gradient) = 0;
    /// States that the gradient of input i is part of the gradient of input `other`, from which input i is computed.
    virtual void covers(int i, int other) = 0;

protected:
    ~Backward() = default;
};

using Kernel = void (*)(const Call&);

/// Bits of OpRow::saves: what the backward rule reads.
constexpr uint32_t saves_in(int i) { return 1u << i; }
constexpr uint32_t saves_out(int i) { return 1u << (kMaxInputs + i); }

struct OpRow {
    const char* name;
    int inputs, outputs;
    Kernel reference, cpu;
    /// Checks the inputs and says what the outputs are. An output with dtype only and no shape is a scalar.
    OutputSpecs (*infer)(std::span<const Tensor> in, const Attrs&);
    /// Null: not differentiable (gradients themselves, updates).
    void (*backward)(Backward&) = nullptr;
    uint32_t saves = 0;
    /// Floating-point operations of a call; null: one per output element.
    double (*flops)(const Call&) = nullptr;
    /// Error when one of several things is asked for (a label, an index) that are fewer. Of inputs in this machine's
    /// memory: a device's kernels do not say it, and make NaN. Null: nothing is asked for.
    void (*check)(const Call&) = nullptr;
};

const OpRow& row(Op op);

/// Runs an op: checks, allocates the outputs (or takes those given in `into`), executes on the context's backend,
/// records on the active tape. Every op of the framework goes through here.
std::array<Tensor, kMaxOutputs> run(Op op, std::initializer_list<Tensor> in, const Attrs& attrs = {},
                                    std::initializer_list<Tensor> into = {});

/// Executes an op whose outputs exist on the context's backend, and times it if a profile is kept.
void execute(Op op, const Call& call);
/// Called after each op that execute() has run, unless null. For tests alone, which perturb results with it.
inline void (*after_op)(Op, const Call&) = nullptr;
/// Floating-point operations of a call.
double flops_of(Op op, const Call& call);

} // namespace rg
