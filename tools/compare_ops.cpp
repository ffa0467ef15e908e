// Runs ops and optimizers on random inputs, and writes inputs, results and gradients to a folder. compare_ops.py runs
// this program and compares the files with PyTorch.
//
//     compare_ops DIR
//
// Each file holds one case. For an op, it holds the inputs by name, dy, the result y, and the gradient "d NAME" of each
// input that has one. For an optimizer, see write_optimizer(). The metadata holds the name and the attributes. To cover
// another op, add a line to op_cases() or main() here, and one to the table in compare_ops.py.
#include "core/ops.h"
#include "core/rng.h"
#include "core/safetensors.h"
#include "core/tape.h"
#include "models/run/optimizer.h"

#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>

using namespace rg;

namespace {

using Attributes = std::map<std::string, double>;
using Tensors = std::span<const Tensor>;

enum class InputKind : uint8_t {
    activation, // normal; in bf16 in the second run of a case
    parameter,  // normal; always f32
    positive,   // f32 between 0.5 and 1.5, without gradient
    target,     // f32 between 0 and 1, without gradient
    labels      // i32, below the number of columns of input 0; without gradient
};

struct Input {
    const char* name;
    Shape shape;
    InputKind kind = InputKind::activation;
    bool has_gradient() const { return kind == InputKind::activation || kind == InputKind::parameter; }
};

struct Case {
    const char* op;
    Attributes attributes;
    std::vector<Input> inputs;
    Tensor (*f)(Tensors, Attributes);
};

// Returns all cases. In each function, `in` has the inputs of the case, and `a` its attributes.
std::vector<Case> op_cases() {
    using T = Tensors;
    using A = Attributes;
    constexpr InputKind parameter = InputKind::parameter;
    const auto conv = [](T in, A a) {
        return conv2d(in[0], in[1], in[2],
                      {.stride = int64_t(a["stride"]),
                       .pad = int64_t(a["padding"]),
                       .dilation = std::max<int64_t>(1, int64_t(a["dilation"])),
                       .groups = std::max<int64_t>(1, int64_t(a["groups"]))});
    };
    static const auto kPoolOf = [](A a) -> Pool {
        return {.window = {int64_t(a["height"]), int64_t(a["width"])},
                .stride = int64_t(a["stride"]),
                .pad = int64_t(a["padding"]),
                .count_pad = a["count_pad"] > 0};
    };
    const auto entropy = [](T in, A a) { return cross_entropy(in[0], in[1], float(a["smoothing"])); };
    const auto weighted = [](T in, A a) { return cross_entropy(in[0], in[1], float(a["smoothing"]), in[2]); };
    const auto max_pool = [](T in, A a) { return max_pool2d(in[0], kPoolOf(a)); };
    const auto avg_pool = [](T in, A a) { return avg_pool2d(in[0], kPoolOf(a)); };
    const Shape image{4, 8, 8, 16};
    const Input odd{"x", {4, 9, 9, 16}};
    const Input x{"x", image}, logits{"x", {33, 10}, parameter}, labels{"labels", {33}, InputKind::labels},
        weights{"weights", {10}, InputKind::positive}, gamma{"gamma", {16}, parameter}, beta{"beta", {16}, parameter};
    return {
        {"conv2d",
         {{"stride", 1}, {"padding", 1}},
         {x, {"w", {24, 3, 3, 16}, parameter}, {"b", {24}, parameter}},
         conv},
        {"conv2d", {{"stride", 2}, {"padding", 0}}, {x, {"w", {5, 2, 2, 16}, parameter}, {"b", {5}, parameter}}, conv},
        {"conv2d", {{"stride", 1}, {"padding", 1}}, {x, {"w", {8, 1, 5, 16}, parameter}, {"b", {8}, parameter}}, conv},
        {"conv2d",
         {{"stride", 1}, {"padding", 2}, {"dilation", 2}},
         {x, {"w", {8, 3, 3, 16}, parameter}, {"b", {8}, parameter}},
         conv},
        {"conv2d",
         {{"stride", 1}, {"padding", 1}, {"groups", 4}},
         {x, {"w", {24, 3, 3, 4}, parameter}, {"b", {24}, parameter}},
         conv},
        {"conv2d",
         {{"stride", 2}, {"padding", 1}, {"groups", 2}},
         {x, {"w", {24, 3, 3, 8}, parameter}, {"b", {24}, parameter}},
         conv},
        {"conv2d",
         {{"stride", 1}, {"padding", 1}, {"groups", 16}},
         {x, {"w", {16, 3, 3, 1}, parameter}, {"b", {16}, parameter}},
         conv},
        {"conv2d",
         {{"stride", 1}, {"padding", 1}, {"groups", 16}},
         {x, {"w", {32, 3, 3, 1}, parameter}, {"b", {32}, parameter}},
         conv},
        {"linear",
         {},
         {{"x", {33, 50}}, {"w", {10, 50}, parameter}, {"b", {10}, parameter}},
         [](T in, A) { return linear(in[0], in[1], in[2]); }},
        {"max_pool2d", {{"height", 2}, {"width", 2}, {"stride", 2}, {"padding", 0}}, {x}, max_pool},
        {"max_pool2d", {{"height", 2}, {"width", 4}, {"stride", 1}, {"padding", 1}}, {x}, max_pool},
        {"max_pool2d", {{"height", 3}, {"width", 3}, {"stride", 2}, {"padding", 1}}, {odd}, max_pool},
        {"avg_pool2d", {{"height", 4}, {"width", 2}, {"stride", 2}, {"padding", 0}, {"count_pad", 1}}, {x}, avg_pool},
        {"avg_pool2d", {{"height", 3}, {"width", 3}, {"stride", 2}, {"padding", 1}, {"count_pad", 1}}, {odd}, avg_pool},
        {"avg_pool2d", {{"height", 3}, {"width", 3}, {"stride", 2}, {"padding", 1}, {"count_pad", 0}}, {odd}, avg_pool},
        {"global_avg_pool", {}, {x}, [](T in, A) { return global_avg_pool(in[0]); }},
        {"batch_norm",
         {},
         {x, gamma, beta},
         [](T in, A) { return batch_norm(in[0], channel_stats(in[0]), in[1], in[2]); }},
        {"layer_norm", {}, {x, gamma, beta}, [](T in, A) { return layer_norm(in[0], in[1], in[2]); }},
        {"relu", {}, {x}, [](T in, A) { return relu(in[0]); }},
        {"gelu", {}, {x}, [](T in, A) { return gelu(in[0]); }},
        {"leaky_relu", {{"slope", 0.2}}, {x}, [](T in, A a) { return leaky_relu(in[0], float(a["slope"])); }},
        {"silu", {}, {x}, [](T in, A) { return silu(in[0]); }},
        {"sigmoid", {}, {x}, [](T in, A) { return sigmoid(in[0]); }},
        {"tanh", {}, {x}, [](T in, A) { return tanh(in[0]); }},
        {"add", {}, {{"a", image}, {"b", image}}, [](T in, A) { return add(in[0], in[1]); }},
        {"sub", {}, {{"a", image}, {"b", image}}, [](T in, A) { return sub(in[0], in[1]); }},
        {"mul", {}, {{"a", image}, {"b", image}}, [](T in, A) { return mul(in[0], in[1]); }},
        {"concat", {}, {{"a", image}, {"b", {4, 8, 8, 3}}}, [](T in, A) { return concat(in); }},
        {"sum", {}, {x}, [](T in, A) { return sum(in[0]); }},
        {"mean", {}, {x}, [](T in, A) { return mean(in[0]); }},
        {"scale", {{"factor", -0.7}}, {x}, [](T in, A a) { return scale(in[0], float(a["factor"])); }},
        {"dropout",
         {{"probability", 0.3}},
         {x},
         [](T in, A a) { return dropout(in[0], float(a["probability"]), seed_tensor(5).to_device()); }},
        {"cross_entropy", {{"smoothing", 0}}, {logits, labels}, entropy},
        {"cross_entropy", {{"smoothing", 0.1}}, {logits, labels}, entropy},
        {"cross_entropy", {{"smoothing", 0}}, {logits, labels, weights}, weighted},
        {"cross_entropy", {{"smoothing", 0.1}}, {logits, labels, weights}, weighted},
        {"mse_loss", {}, {logits, {"target", {33, 10}, parameter}}, [](T in, A) { return mse_loss(in[0], in[1]); }},
        {"binary_cross_entropy",
         {},
         {logits, {"target", {33, 10}, InputKind::target}},
         [](T in, A) { return binary_cross_entropy(in[0], in[1]); }},
    };
}

Tensor draw(const Input& input, const Input& first, DType activations, uint64_t index) {
    Rng random(1, Purpose::test, 0, index);
    const Tensor t = Tensor::empty(input.shape, input.kind == InputKind::labels ? DType::i32 : DType::f32);
    if (input.kind == InputKind::labels) {
        for (int32_t& v : t.span<int32_t>()) v = int32_t(random.uniform_below(uint32_t(first.shape[1])));
        return t;
    }
    for (float& v : t.span<float>())
        v = input.has_gradient() ? random.normal() : random.uniform() + (input.kind == InputKind::positive ? 0.5f : 0);
    return input.kind == InputKind::activation ? t.to(activations) : t;
}

/// Returns a loss whose gradient in y is dy: for n elements, the mean squared difference between y and the constant y -
/// dy n / 2. For a scalar y, it is dy y.
Tensor loss_with_gradient(const Tensor& y, const Tensor& dy) {
    if (y.numel() == 1) return scale(y, dy.data<float>()[0]);
    Tensor target;
    {
        const NoTape constant;
        target = y.to(DType::f32);
        for (int64_t i = 0; i < y.numel(); ++i) target.data<float>()[i] -= dy.data<float>()[i] * float(y.numel()) / 2;
    }
    return mse_loss(cast(y, DType::f32), target);
}

Metadata metadata(const char* op, const Attributes& attributes) {
    Metadata result{{"op", op}};
    for (const auto& [name, value] : attributes) {
        char text[32];
        std::snprintf(text, sizeof text, "%.9g", value);
        result.emplace_back(name, text);
    }
    return result;
}

void write_case(const Case& c, DType activations, const std::string& path) {
    std::vector<NamedTensor> file;
    std::vector<Tensor> in, differentiable, gradients;
    for (const Input& input : c.inputs) {
        in.push_back(draw(input, c.inputs[0], activations, in.size()));
        file.push_back({input.name, in.back()});
        if (!input.has_gradient()) continue;
        differentiable.push_back(in.back());
        gradients.push_back(Tensor::zeros(input.shape, in.back().dtype()));
        file.push_back({cat("d ", input.name), gradients.back()});
    }
    Tape tape;
    const Tensor y = c.f(in, c.attributes);
    // dy is rounded to bf16, so that it is the same if y is bf16.
    const Tensor dy = draw({"dy", y.shape(), InputKind::activation}, {}, DType::bf16, 99).to(DType::f32);
    tape.gradients(loss_with_gradient(y, dy), differentiable, gradients);
    file.push_back({"y", y});
    file.push_back({"dy", dy});
    save_tensors(path, file, metadata(c.op, c.attributes));
}

/// Writes the parameters before the first step ("start"), the gradients of each step ("g"), and the parameters after it
/// ("p"). If options.average is positive, also writes the average of the parameters after each step ("average"). All
/// are flat buffers: biases, unless the optimizer is muon, and after them filters, which have half of the learning
/// rate. The metadata holds the options.
void write_optimizer(const char* name, double lr, const OptimizerOptions& options, const std::string& path) {
    constexpr int64_t kSteps = 20, kFilters = 16, kBiases = 208; // filters and biases: multiples of 16, not padded
    const bool is_muon = options.kind == OptimizerKind::muon;
    Parameters parameters;
    parameters.add("filters", {kFilters, 5, 5, 2}, Parameters::Entry::Start::random);
    if (!is_muon) parameters.add("biases", {kBiases}, Parameters::Entry::Start::ones);
    parameters.allocate(1, Init::he);
    parameters.entry("filters").rate = 0.5f;
    parameters.entry("filters").scale_free = is_muon;
    Optimizer optimizer(parameters, options);
    const Tensor& values = parameters.values();
    const int64_t n = values.numel();
    const Tensor start = values.clone(), g = draw({"g", {kSteps, n}}, {}, DType::f32, 1);
    const Tensor p = Tensor::zeros({kSteps, n}), average = Tensor::zeros({kSteps, n});
    for (int64_t step = 0; step < kSteps; ++step) {
        parameters.gradients().copy_from(g.slice(step * n, {n}));
        optimizer.set(lr, step + 1);
        optimizer.update(Tensor::zeros({}));
        optimizer.end_step(step + 1, kSteps);
        p.slice(step * n, {n}).copy_from(values);
        optimizer.with_average([&] { average.slice(step * n, {n}).copy_from(values); });
    }
    std::vector<NamedTensor> file{{"start", start}, {"g", g}, {"p", p}};
    if (options.average > 0) file.push_back({"average", average});
    save_tensors(path, file,
                 metadata(name, {{"lr", lr},
                                 {"momentum", options.momentum},
                                 {"nesterov", options.nesterov},
                                 {"weight_decay", options.weight_decay},
                                 {"decay_biases", options.decay_biases},
                                 {"max_norm", options.max_norm},
                                 {"average", options.average},
                                 {"filters", kFilters},
                                 {"biases", is_muon ? 0 : kBiases}}));
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr,
                     "compare_ops: expected the folder to write to, got %d arguments; see the first lines of "
                     "tools/compare_ops.py\n",
                     argc - 1);
        return 2;
    }
    try {
        const std::filesystem::path folder = argv[1];
        std::filesystem::create_directories(folder);
        int number = 100; // three digits, so that the files sort in the order of the cases
        const auto next = [&] { return (folder / cat(number++, ".safetensors")).string(); };
        for (const Case& c : op_cases()) {
            write_case(c, DType::f32, next());
            if (c.inputs[0].kind == InputKind::activation) write_case(c, DType::bf16, next());
        }
        write_optimizer("SGD", 0.1, {.kind = OptimizerKind::sgd, .weight_decay = 0.01}, next());
        write_optimizer("SGD", 0.1, {.kind = OptimizerKind::sgd, .nesterov = true, .weight_decay = 0.01}, next());
        write_optimizer("Adam", 0.01, {.kind = OptimizerKind::adam, .weight_decay = 0.01}, next());
        write_optimizer(
            "AdamW", 0.01,
            {.kind = OptimizerKind::adamw, .weight_decay = 0.05, .decay_biases = false, .max_norm = 20, .average = 0.9},
            next());
        write_optimizer("Muon", 0.1, {.kind = OptimizerKind::muon, .momentum = 0.6, .nesterov = true}, next());
    } catch (const std::exception& e) {
        std::fprintf(stderr, "compare_ops: %s\n", e.what());
        return 1;
    }
}
