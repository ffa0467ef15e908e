// Defines ops. An op is a row of the op table. Dispatch, tape, plans, profile and generic tests know an op only by its
// row. Fusion (fuse.cpp) and the export to ONNX know particular ops.
//
// core/ops/ has one header and one source file per family of ops. They hold everything about an op except its fast
// kernels: attributes, arguments, shape rule, backward rule, cost, and the reference implementation. A new op in a
// family needs a row in core/ops/, a kernel in core/cpu/, a kernel in gpu/, cases in tests/op_cases.h, and a node
// in the export to ONNX if predictions use it. A backward rule is itself written with ops.
#pragma once

#include "core/tensor.h"

#include <array>
#include <cstring>
#include <span>
#include <typeinfo>

namespace rg {

constexpr int kMaxInputs = 12, kMaxOutputs = 6;

/// Holds the values that an op takes beside tensors, in the op's own struct (for example Conv2dOp). The replays of a
/// plan use the attributes of the trace. So a value that changes from call to call, such as the learning rate, must be
/// a tensor.
class Attrs {
public:
    /// Makes the default attributes of any op.
    Attrs() = default;
    template <class T>
    requires std::is_trivially_copyable_v<T> Attrs(const T& values)
        : type_(&typeid(T)) { // implicit: callers write run(op::scale, {x}, ScaleOp{2})
        static_assert(sizeof(T) <= sizeof bytes_ && alignof(T) <= 8);
        std::memcpy(bytes_, &values, sizeof values);
    }

    /// Returns the attributes as T, the struct of the op. Throws Error if they are those of another op.
    template <class T>
    const T& as() const {
        static const T kDefault{};
        if (!type_) return kDefault;
        RG_CHECK(*type_ == typeid(T), "expected the attributes ", typeid(T).name(), ", got ", type_->name());
        return *reinterpret_cast<const T*>(bytes_);
    }
    /// Returns the attributes as T, by a reference through which the caller may change them. Throws Error if they are
    /// those of another op.
    template <class T>
    T& as() {
        if (!type_) *this = T{};
        return const_cast<T&>(std::as_const(*this).as<T>());
    }

private:
    const std::type_info* type_ = nullptr;
    alignas(8) std::byte bytes_[96] = {};
};

/// One invocation of an op. Optional inputs that are absent are undefined tensors. Index inputs and outputs by the
/// names in the op's struct: call.in[Conv2dOp::w].
struct Call {
    const Attrs& attrs;
    std::span<const Tensor> in;
    std::span<const Tensor> out;
};

/// The types that an argument may have.
enum class Type : uint8_t {
    activation, // f32, bf16 or f64; all activations of a call have the same type
    precise,    // parameters, statistics, losses: f32 beside activations in bf16, else the type of the activations
    f32,
    i32,
    u8
};

enum class Presence : uint8_t {
    required,
    optional,
    fused // optional; only fused steps of a plan have it, since backward rules ignore it
};

struct Argument {
    const char* name;
    Type type = Type::activation;
    Presence presence = Presence::required;
};

struct OutputSpec {
    Shape shape;
    DType dtype = DType::f32;
};
using OutputSpecs = std::array<OutputSpec, kMaxOutputs>;

/// Gives a backward rule the tensors and attributes of its op's invocation, and takes the gradients from the rule.
/// Inputs and outputs that OpRow::saves does not list have a shape and a type, but no values.
class BackwardContext {
public:
    virtual const Attrs& attrs() const = 0;
    virtual const Tensor& in(int i) const = 0;
    virtual const Tensor& out(int i) const = 0;
    /// Returns the gradient of the loss with respect to output 0.
    virtual const Tensor& dy() const = 0;
    /// Returns true if the gradient of input i is needed.
    virtual bool wants(int i) const = 0;
    /// Returns the buffer that the caller of Tape::gradients() gave for the gradient of input i. The rule may pass the
    /// buffer to run() as an output. Returns an undefined tensor if there is no such buffer, if the buffer already
    /// holds an earlier contribution, or if another input is the same tensor.
    virtual Tensor into(int i) const = 0;
    /// Contributes `gradient` to the gradient of input i. Tape::gradients() assigns the first contribution and adds
    /// later ones.
    virtual void give(int i, const Tensor& gradient) = 0;
    /// States that the gradient of input `other` already includes the part that flows through input i, if input i was
    /// computed from `other` alone. Then input i needs no gradient of its own. Has no effect otherwise.
    virtual void covers(int i, int other) = 0;
    /// States that the op takes input i for a constant, such as running statistics that other ops of the tape update.
    virtual void takes_as_constant(int i) = 0;

protected:
    ~BackwardContext() = default;
};

using Kernel = void (*)(const Call&);

/// Bits of OpRow::saves and OpRow::images, which stand for inputs and outputs.
constexpr uint32_t input_bit(int i) { return 1u << i; }
constexpr uint32_t output_bit(int i) { return 1u << (kMaxInputs + i); }

struct OpRow {
    const char* name;
    Kernel reference, cpu;
    /// Checks the shapes of the inputs and the attributes, and returns the shapes and types of the outputs. The caller
    /// has already checked the types of the inputs, and that the required ones are defined.
    OutputSpecs (*infer)(std::span<const Tensor> in, const Attrs&);
    std::span<const Argument> inputs;
    int outputs = 1;
    /// The inputs that an output may be: output o may have the very bytes of input i if bit i of may_be[o] is set. An
    /// op can allow that if its kernels compute each element of the output from the same element of the input, and read
    /// neither afterwards. All other outputs share no byte with any input. No output shares a byte with another.
    /// run() throws Error otherwise. Plans obey the same rule: they fuse no steps that would break it.
    std::array<uint32_t, kMaxOutputs> may_be = {};
    /// The inputs and outputs that hold a batch of images along their first extent, if the op computes each image of
    /// these outputs from the same image of these inputs and from the other inputs alone. Predictions may then run the
    /// op for a few images at a time. 0: an op for which this does not hold.
    uint32_t images = 0;
    /// The first `in_place` outputs must be the inputs with the same index, which the op updates.
    int in_place = 0;
    /// The backward rule: computes the gradients of the inputs. Null if no gradient can flow through the op.
    void (*backward)(BackwardContext&) = nullptr;
    /// The inputs and outputs whose values the backward rule reads.
    uint32_t saves = 0;
    /// Returns the bits of `saves` if they depend on the attributes. Null: `saves` itself has the bits.
    uint32_t (*saves_for)(const Attrs&) = nullptr;
    /// Returns the number of floating-point operations of a call. Null: one per element of output 0.
    double (*flops)(const Call&) = nullptr;
    /// Throws Error if a value of an input, such as a label, is out of range. Checks only inputs in host memory. If
    /// such a value is in device memory, the op's result is NaN instead. Null: all values are valid.
    void (*check)(const Call&) = nullptr;
    /// The GPU kernel of an op that a program defines itself. The ops of RG_OPS (op_table.h) leave this null, since
    /// gpu/ has their kernels. If a program's own op has none, a device runs `cpu` on copies in host memory.
    Kernel gpu = nullptr;
};

/// An op is identified by its row. Each family declares rows::NAME and op::NAME for its ops, and defines the rows.
using Op = const OpRow*;
#define RG_DECLARE_OP(name)                                                                                            \
    namespace rows {                                                                                                   \
    extern const OpRow name;                                                                                           \
    }                                                                                                                  \
    namespace op {                                                                                                     \
    inline constexpr Op name = &rows::name;                                                                            \
    }

/// Checks the inputs, and returns the shapes and types of the outputs. `in` has one tensor per input of the row.
OutputSpecs infer(const OpRow& row, std::span<const Tensor> in, const Attrs& attrs);

/// Returns an error text if outputs share memory with inputs or with each other against OpRow::may_be or
/// OpRow::in_place. Returns "" otherwise.
std::string wrong_alias(const OpRow& row, std::span<const Tensor> in, std::span<const Tensor> out);

/// Runs an op: checks the inputs, allocates the outputs (or takes those that are defined in `into`), executes the op,
/// and records it on the active tape. Returns the outputs. Throws Error if an output shares memory with an input or
/// another output and OpRow::may_be does not allow it. While a function is traced, records the op in the trace instead
/// of executing it. In a DryRun, does not execute it. Optional inputs at the end may be omitted. Networks and backward
/// rules call ops through run(); replays of a plan call execute().
std::array<Tensor, kMaxOutputs> run(Op op, std::span<const Tensor> in, const Attrs& attrs = {},
                                    std::span<const Tensor> into = {});
std::array<Tensor, kMaxOutputs> run(Op op, std::initializer_list<Tensor> in, const Attrs& attrs = {},
                                    std::initializer_list<Tensor> into = {});

/// Executes an op on the context's device, or on its backend if it has no device. The outputs must exist already. If
/// the context has a profile, adds the time of the op to it.
void execute(Op op, const Call& call);
/// Runs the CPU kernel of an op on copies of its tensors in host memory, and copies the results back to the device.
/// Blocks until the device has finished the earlier ops. Calls OpRow::check on the copies. If a step of a plan runs on
/// the host, the replays launch the ops of the plan one by one, and not as graphs.
void run_on_host(Op op, const Call& call);
/// If this is not null, execute() calls it after each op. Only tests set it, for example to perturb results.
inline void (*after_op)(Op, const Call&) = nullptr;
/// Returns OpRow::flops of a call, or if that is null, the number of values in the first result.
double flops_of(Op op, const Call& call);

} // namespace rg
