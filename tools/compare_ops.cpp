// Runs ops and optimizers on random inputs, and writes inputs, results and gradients to a folder. compare_ops.py runs
// this program and compares the files with PyTorch.
//
//     compare_ops DIR
//
// Each file holds one case. That of an op has its inputs by name, dy, the result y, and the gradient "d NAME" of each
// input that has one. For that of an optimizer, see write_update(). The metadata holds the name and the attributes. To
// cover another op, add a line to op_cases() or updates() here, and one to the table in compare_ops.py.
#include "ringgrad/core/ops.h"
#include "ringgrad/core/rng.h"
#include "ringgrad/core/safetensors.h"
#include "ringgrad/core/tape.h"
#include "ringgrad/models/run/optimizer.h"

#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>

using namespace rg;

namespace {

using Attributes = std::map<std::string, double>;
using Tensors = std::span<const Tensor>;

enum class Kind : uint8_t {
    activation, // normal; in bf16 in the second run of a case
    parameter,  // normal; always f32
    positive,   // f32 between 0.5 and 1.5, without gradient
    target,     // f32 between 0 and 1, without gradient
    labels      // i32, below the number of columns of input 0; without gradient
};

struct Input {
    const char* name;
    Shape shape;
    Kind kind = Kind::activation;
    bool has_gradient() const { return kind == Kind::activation || kind == Kind::parameter; }
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
    constexpr Kind parameter = Kind::parameter;
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
    const Input x{"x", image}, logits{"x", {33, 10}, parameter}, labels{"labels", {33}, Kind::labels},
        weights{"weights", {10}, Kind::positive}, gamma{"gamma", {16}, parameter}, beta{"beta", {16}, parameter};
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
         [](T in, A a) { return dropout(in[0], float(a["probability"]), uint64_t{5}); }},
        {"cross_entropy", {{"smoothing", 0}}, {logits, labels}, entropy},
        {"cross_entropy", {{"smoothing", 0.1}}, {logits, labels}, entropy},
        {"cross_entropy", {{"smoothing", 0}}, {logits, labels, weights}, weighted},
        {"cross_entropy", {{"smoothing", 0.1}}, {logits, labels, weights}, weighted},
        {"mse_loss", {}, {logits, {"target", {33, 10}, parameter}}, [](T in, A) { return mse_loss(in[0], in[1]); }},
        {"binary_cross_entropy",
         {},
         {logits, {"target", {33, 10}, Kind::target}},
         [](T in, A) { return binary_cross_entropy(in[0], in[1]); }},
    };
}

Tensor draw(const Input& input, const Input& first, DType activations, uint64_t index) {
    Rng random(1, Purpose::test, 0, index);
    const Tensor t = Tensor::empty(input.shape, input.kind == Kind::labels ? DType::i32 : DType::f32);
    if (input.kind == Kind::labels) {
        for (int32_t& v : t.span<int32_t>()) v = int32_t(random.uniform_below(uint32_t(first.shape[1])));
        return t;
    }
    for (float& v : t.span<float>())
        v = input.has_gradient() ? random.normal() : random.uniform() + (input.kind == Kind::positive ? 0.5f : 0);
    return input.kind == Kind::activation ? t.to(activations) : t;
}

/// Returns a loss whose gradient in y is dy: the mean squared difference from y - dy n / 2, where y has n elements. For
/// a scalar y, it is dy y.
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
    const Tensor dy = draw({"dy", y.shape(), Kind::activation}, {}, DType::bf16, 99).to(DType::f32);
    tape.gradients(loss_with_gradient(y, dy), differentiable, gradients);
    file.push_back({"y", y});
    file.push_back({"dy", dy});
    save_tensors(path, file, metadata(c.op, c.attributes));
}

/// An update rule. f updates p by the gradient g in the step number `step`, counted from 1. m and v are its state.
struct Update {
    const char* name;
    Attributes attributes;
    void (*f)(const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& g, Attributes a, int64_t step);
};

std::vector<Update> updates() {
    using A = Attributes;
    const auto sgd = [](const Tensor& p, const Tensor& m, const Tensor&, const Tensor& g, A a, int64_t) {
        sgdm_update(p, m, g, {float(a["lr"]), float(a["momentum"]), float(a["weight_decay"]), a["nesterov"] > 0});
    };
    const auto adam = [](const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& g, A a, int64_t step) {
        adam_update(p, m, v, g, {.lr = float(a["lr"]), .weight_decay = float(a["weight_decay"])}, step);
    };
    return {
        {"SGD", {{"lr", 0.1}, {"momentum", 0.9}, {"weight_decay", 0.01}, {"nesterov", 0}}, sgd},
        {"SGD", {{"lr", 0.1}, {"momentum", 0.9}, {"weight_decay", 0.01}, {"nesterov", 1}}, sgd},
        {"Adam", {{"lr", 0.01}, {"weight_decay", 0.01}}, adam}, // write_groups() has AdamW
    };
}

/// Writes the parameters before the first step ("start"), the gradients of each step ("g"), and the parameters after it
/// ("p").
void write_update(const Update& u, const std::string& path) {
    constexpr int64_t kSteps = 20, kValues = 1000;
    const Tensor start = draw({"start", {kValues}}, {}, DType::f32, 0), p = start.clone(), m = Tensor::zeros({kValues}),
                 v = Tensor::zeros({kValues}), g = draw({"g", {kSteps, kValues}}, {}, DType::f32, 1),
                 all = Tensor::zeros({kSteps, kValues});
    for (int64_t step = 0; step < kSteps; ++step) {
        u.f(p, m, v, g.slice(step * kValues, {kValues}), u.attributes, step + 1);
        all.slice(step * kValues, {kValues}).copy_from(p);
    }
    save_tensors(path, {{"start", start}, {"g", g}, {"p", all}}, metadata(u.name, u.attributes));
}

/// Does the same for AdamW with two groups, clipping and an average ("average"). The first kWeights values have half of
/// the learning rate; the others have no weight decay.
void write_groups(const std::string& path) {
    constexpr int64_t kSteps = 20, kWeights = 800, kBiases = 200, kValues = kWeights + kBiases;
    Attributes a{{"lr", 0.01}, {"weight_decay", 0.05}, {"max_norm", 20}, {"average", 0.9}, {"weights", kWeights}};
    Parameters parameters;
    parameters.add("weight", {40, 20}, Parameters::Entry::Start::random);
    parameters.add("bias", {kBiases}, Parameters::Entry::Start::ones);
    parameters.allocate(1, Init::he);
    parameters.entry("weight").rate = 0.5f;
    const Optimizer optimizer(parameters, {.kind = OptimizerOptions::Kind::adamw,
                                           .weight_decay = a["weight_decay"],
                                           .decay_biases = false,
                                           .max_norm = a["max_norm"],
                                           .average = a["average"]});
    const auto copy_values = [&](const Tensor& to, int64_t begin) {
        to.slice(begin, {40, 20}).copy_from(parameters.value_list()[0]);
        to.slice(begin + kWeights, {kBiases}).copy_from(parameters.value_list()[1]);
    };
    const Tensor start = Tensor::zeros({kValues}), g = draw({"g", {kSteps, kValues}}, {}, DType::f32, 1),
                 all = Tensor::zeros({kSteps, kValues}), average = Tensor::zeros({kSteps, kValues});
    copy_values(start, 0);
    for (int64_t step = 0; step < kSteps; ++step) {
        const int64_t begin = step * kValues;
        parameters.gradient_list()[0].copy_from(g.slice(begin, {40, 20}));
        parameters.gradient_list()[1].copy_from(g.slice(begin + kWeights, {kBiases}));
        optimizer.set(a["lr"], step + 1);
        optimizer.update(Tensor::zeros({}));
        optimizer.end_step(step + 1, kSteps);
        copy_values(all, begin);
        optimizer.with_average([&] { copy_values(average, begin); });
    }
    save_tensors(path, {{"start", start}, {"g", g}, {"p", all}, {"average", average}}, metadata("AdamW", a));
}

/// Does the same for Muon and a tensor of 20 filters.
void write_muon(const std::string& path) {
    constexpr int64_t kSteps = 20, kValues = 1000;
    const Attributes a{{"lr", 0.1}, {"momentum", 0.6}, {"filters", 20}};
    Parameters parameters;
    parameters.add("filters", {20, 5, 5, 2}, Parameters::Entry::Start::random);
    parameters.entry("filters").scale_free = true;
    parameters.allocate(1, Init::he);
    const Optimizer optimizer(parameters, {.kind = OptimizerOptions::Kind::muon, .momentum = 0.6, .nesterov = true});
    const Tensor p = parameters.value_list()[0].reshape({kValues}), start = p.clone(),
                 gradient = parameters.gradient_list()[0].reshape({kValues}),
                 g = draw({"g", {kSteps, kValues}}, {}, DType::f32, 1), all = Tensor::zeros({kSteps, kValues});
    for (int64_t step = 0; step < kSteps; ++step) {
        gradient.copy_from(g.slice(step * kValues, {kValues}));
        optimizer.set(0.1, step + 1);
        optimizer.update(Tensor::zeros({}));
        all.slice(step * kValues, {kValues}).copy_from(p);
    }
    save_tensors(path, {{"start", start}, {"g", g}, {"p", all}}, metadata("Muon", a));
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
        int number = 100; // so that the names sort in the order of the tables
        const auto next = [&] { return (folder / cat(number++, ".safetensors")).string(); };
        for (const Case& c : op_cases()) {
            write_case(c, DType::f32, next());
            if (c.inputs[0].kind == Kind::activation) write_case(c, DType::bf16, next());
        }
        for (const Update& u : updates()) write_update(u, next());
        write_groups(next());
        write_muon(next());
    } catch (const std::exception& e) {
        std::fprintf(stderr, "compare_ops: %s\n", e.what());
        return 1;
    }
}
