// See onnx.h. Writes ONNX 1.12: opset 17, IR version 8. Field numbers are those of onnx.proto.
#include "models/run/onnx.h"

#include "core/atomic_file.h"
#include "core/json.h"
#include "core/plan.h"
#include "core/version.h"
#include "models/run/model_file.h"
#include "models/run/onnx_graph.h"
#include "models/run/protobuf.h"

#include <algorithm>
#include <filesystem>
#include <set>

namespace rg {

using namespace protobuf;
using onnx::attribute, onnx::Graph, onnx::Ints, onnx::Order;

namespace {

// ---- the nodes of each op ----

Ints both(const PerAxis& p) { return {p.h, p.w}; }
Ints pads(const PerAxis& p) { return {p.h, p.w, p.h, p.w}; }

void write_conv2d(Graph& g, const Step& s) {
    using O = Conv2dOp;
    const Conv& c = s.attrs.as<O>().conv;
    const Tensor &x = s.in[O::x], &w = s.in[O::w], &y = s.out[O::y];
    // A 1 x 1 convolution is a dense layer on each pixel. Write it so if x is not yet in channels-first order: this
    // saves a Transpose.
    const bool dense = g.order_of(x) == Order::channels_last && w.extent(1) * w.extent(2) == 1 && c.stride == 1 &&
                       c.pad == 0 && c.groups == 1;
    std::vector<std::string> inputs;
    if (dense)
        inputs = {g.form_of(x.reshape({x.numel() / x.extent(3), x.extent(3)}), Order::channels_last),
                  g.form_of(w.reshape({w.extent(0), w.extent(3)}), Order::channels_last)};
    else
        inputs = {g.form_of(x, Order::channels_first), g.form_of(w, Order::channels_first)};
    if (s.in[O::bias].defined()) inputs.push_back(g.form_of(s.in[O::bias], Order::channels_last));
    if (dense)
        return g.define(y.reshape({y.numel() / y.extent(3), y.extent(3)}), Order::channels_last,
                        g.node("Gemm", inputs, attribute("transB", int64_t{1})));
    g.define(y, Order::channels_first,
             g.node("Conv", inputs,
                    attribute("kernel_shape", Ints{w.extent(1), w.extent(2)}) + attribute("strides", both(c.stride)) +
                        attribute("pads", pads(c.pad)) + attribute("dilations", both(c.dilation)) +
                        attribute("group", c.groups)));
}

std::string write_gelu(Graph& g, const std::string& x) {
    // gelu(x) = x P(X <= x) for a standard normal X, and P(X <= x) = (1 + erf(x / sqrt(2))) / 2.
    const std::string scaled = g.node("Mul", {x, g.scalar(0.70710678f)});
    const std::string twice_probability = g.node("Add", {g.node("Erf", {scaled}), g.scalar(1)});
    return g.node("Mul", {g.node("Mul", {x, g.scalar(0.5f)}), twice_probability});
}

/// Returns the name of the activation of x.
std::string activated(Graph& g, Activation a, const std::string& x) {
    switch (a.kind) {
    case Activation::none: return x;
    case Activation::relu: return g.node("Relu", {x});
    case Activation::leaky_relu: return g.node("LeakyRelu", {x}, attribute("alpha", a.slope));
    case Activation::relu6: return g.node("Clip", {x, g.scalar(0), g.scalar(6)});
    case Activation::gelu: return write_gelu(g, x);
    case Activation::silu: return g.node("Mul", {x, g.node("Sigmoid", {x})});
    case Activation::hardswish: return g.node("HardSwish", {x});
    case Activation::sigmoid: return g.node("Sigmoid", {x});
    case Activation::hardsigmoid: return g.node("HardSigmoid", {x}, attribute("alpha", 1.0f / 6));
    case Activation::tanh: return g.node("Tanh", {x});
    case Activation::softplus: return g.node("Softplus", {x});
    case Activation::exp: return g.node("Exp", {x});
    case Activation::log: return g.node("Log", {x});
    case Activation::sqrt: return g.node("Sqrt", {x});
    case Activation::abs: return g.node("Abs", {x});
    case Activation::square: return g.node("Mul", {x, x});
    case Activation::reciprocal: return g.node("Reciprocal", {x});
    }
    fail("onnx: activation: expected a kind that ONNX has, got ", int(a.kind));
}

void write_batch_norm(Graph& g, const Step& s) {
    using O = BatchNormOp;
    const BatchNorm& norm = s.attrs.as<O>().norm;
    const Tensor& stats = s.in[O::stats];
    RG_CHECK(stats.has_memory(), "onnx: batch_norm: expected running statistics, got those of the batch; predict with ",
             "Mode::evaluate");
    const int64_t channels = stats.extent(1);
    const std::string y = g.node(
        "BatchNormalization",
        {g.form_of(s.in[O::x], Order::channels_first), g.form_of(s.in[O::gamma], Order::channels_last),
         g.form_of(s.in[O::beta], Order::channels_last), g.form_of(stats.slice(0, {channels}), Order::channels_last),
         g.form_of(stats.slice(channels, {channels}), Order::channels_last)},
        attribute("epsilon", norm.epsilon));
    g.define(s.out[0], Order::channels_first, activated(g, norm.activation, y));
}

void write_layer_norm(Graph& g, const Step& s) {
    using O = LayerNormOp;
    const std::string y =
        g.node("LayerNormalization",
               {g.form_of(s.in[O::x], Order::channels_last), g.form_of(s.in[O::gamma], Order::channels_last),
                g.form_of(s.in[O::beta], Order::channels_last)},
               attribute("axis", int64_t{-1}) + attribute("epsilon", s.attrs.as<O>().epsilon));
    g.define(s.out[0], Order::channels_last, y);
}

void write_pool(Graph& g, const Step& s, const char* type, const std::string& more) {
    const Pool& p = s.attrs.as<Pool2dOp>().pool;
    g.define(s.out[0], Order::channels_first,
             g.node(type, {g.form_of(s.in[Pool2dOp::x], Order::channels_first)},
                    attribute("kernel_shape", both(p.window)) + attribute("strides", both(p.stride)) +
                        attribute("pads", pads(p.pad)) + more));
}
void write_avg_pool2d(Graph& g, const Step& s) {
    const Pool& p = s.attrs.as<Pool2dOp>().pool;
    const Tensor& x = s.in[Pool2dOp::x];
    if (p.window == PerAxis(x.extent(1), x.extent(2)) && p.pad == 0)
        return g.define(s.out[0], Order::channels_first,
                        g.node("GlobalAveragePool", {g.form_of(x, Order::channels_first)}));
    write_pool(g, s, "AveragePool", attribute("count_include_pad", int64_t(p.count_pad)));
}

void write_activation(Graph& g, const Step& s) {
    const Order order = g.order_of(s.in[0]);
    g.define(s.out[0], order, activated(g, s.attrs.as<ActivationOp>().activation, g.form_of(s.in[0], order)));
}

/// Writes arithmetic on two tensors, in the order of the first operand that is not a constant. In a trace, only
/// constants have memory. ONNX repeats the elements of b as repeats_of() (elements.h) does.
void write_binary(Graph& g, const Step& s, const char* type) {
    const Tensor &a = s.in[0], b = s.in[1].reshape(aligned(s.in[1].shape(), a.shape()));
    const Order order = g.order_of(a.has_memory() ? b : a);
    g.define(s.out[0], order, g.node(type, {g.form_of(a, order), g.form_of(b, order)}));
}
void write_binary_kind(Graph& g, const Step& s) {
    constexpr const char* kTypes[] = {
#define RG_TYPE(name, value, type) type,
        RG_BINARIES(RG_TYPE)
#undef RG_TYPE
    };
    write_binary(g, s, kTypes[size_t(s.attrs.as<BinaryOp>().kind)]);
}

void write_scale(Graph& g, const Step& s) {
    const auto& a = s.attrs.as<ScaleOp>();
    const Tensor &x = s.in[ScaleOp::x], &factor = s.in[ScaleOp::factor];
    const Order order = g.order_of(x);
    std::string y = g.form_of(x, order);
    if (factor.defined() || a.constant != 1)
        y = g.node("Mul", {y, factor.defined() ? g.form_of(factor, Order::channels_last) : g.scalar(a.constant)});
    if (a.shift != 0) y = g.node("Add", {y, g.scalar(a.shift)});
    g.define(s.out[0], order, y);
}

void write_sum(Graph& g, const Step& s) {
    const Tensor& x = s.in[0];
    const Order order = g.order_of(x);
    const Shape shape = aligned(s.out[0].shape(), x.shape());
    Ints axes;
    for (const int axis : {0, 1, 2, 3}) { // of the file: channels come after the images if they are first there
        const int ours = order == Order::channels_first && axis > 0 ? (axis + 1) % 3 + 1 : axis;
        if (axis < shape.rank() && shape[ours] == 1) axes.push_back(axis);
    }
    // ONNX 1.12 has the axes of a mean as an attribute, and those of a sum as an input.
    const std::string y = s.attrs.as<SumOp>().mean
                              ? g.node("ReduceMean", {g.form_of(x, order)}, attribute("axes", axes))
                              : g.node("ReduceSum", {g.form_of(x, order), g.ints(axes)});
    g.define(s.out[0].reshape(shape), order, y);
}

void write_cast(Graph& g, const Step& s) {
    const Order order = g.order_of(s.in[0]);
    g.define(s.out[0], order, g.form_of(s.in[0], order));
}

void write_softmax(Graph& g, const Step& s) {
    g.define(s.out[0], Order::channels_last,
             g.node("Softmax", {g.form_of(s.in[0], Order::channels_last)}, attribute("axis", int64_t{-1})));
}

void write_slice(Graph& g, const Step& s) {
    const auto& a = s.attrs.as<SliceOp>();
    RG_CHECK(!g.depends_on_batch(a.count), "onnx: slice: expected a part of fixed size, got one that depends on the ",
             "size of the batch; slice the result of the prediction instead");
    g.define(
        s.out[0], Order::channels_last,
        g.node("Slice", {g.form_of(s.in[0], Order::channels_last), g.ints({a.begin}), g.ints({a.begin + a.count})}));
}

/// Writes upsample(), which a trace holds as two concatenations: the first repeats each pixel `count` times, the second
/// each row. If this step is such a second one, writes both as one node and returns true. Else returns false.
bool write_upsample(Graph& g, const Step& s, int64_t count) {
    const Tensor& wide = s.in[0];
    const auto first = g.repeated_images.find(wide.key());
    if (first == g.repeated_images.end() || first->second.count != count) return false;
    const Tensor& x = first->second.image;
    const int64_t n = x.extent(0), h = x.extent(1), w = x.extent(2), c = x.extent(3);
    if (wide.shape() != Shape{n, h, 1, w * count * c}) return false;
    const float scales[] = {1, 1, float(count), float(count)};
    const std::string y = g.node(
        "Resize", {g.form_of(x, Order::channels_first), "", g.constant(cat("upsample_by_", count), scales, Ints{4})},
        attribute("mode", "nearest") + attribute("coordinate_transformation_mode", "asymmetric") +
            attribute("nearest_mode", "floor"));
    g.define(s.out[0].reshape({n, h * count, w * count, c}), Order::channels_first, y);
    return true;
}

void write_concat(Graph& g, const Step& s) {
    const auto end = std::ranges::find_if_not(s.inputs(), &Tensor::defined);
    const std::span<const Tensor> in(s.inputs().begin(), end);
    const bool copies =
        std::ranges::all_of(in, [&](const Tensor& t) { return t.key() == in[0].key() && t.shape() == in[0].shape(); });
    if (copies && in[0].shape().rank() == 4) {
        if (write_upsample(g, s, int64_t(in.size()))) return;
        g.repeated_images[s.out[0].key()] = {in[0], int64_t(in.size())};
    }
    const auto value = std::ranges::find_if_not(in, &Tensor::has_memory);
    const Order order = value == in.end() ? Order::channels_last : g.order_of(*value);
    std::vector<std::string> inputs;
    for (const Tensor& t : in) inputs.push_back(g.form_of(t, order));
    const int64_t axis = order == Order::channels_first ? 1 : in[0].shape().rank() - 1;
    g.define(s.out[0], order, g.node("Concat", inputs, attribute("axis", axis)));
}

struct OpWriter {
    Op op;
    void (*write)(Graph&, const Step&);
};
constexpr OpWriter kMappings[] = {
    {op::conv2d, write_conv2d},
    {op::batch_norm, write_batch_norm},
    {op::layer_norm, write_layer_norm},
    {op::max_pool2d, [](Graph& g, const Step& s) { write_pool(g, s, "MaxPool", ""); }},
    {op::avg_pool2d, write_avg_pool2d},
    {op::activation, write_activation},
    {op::add, [](Graph& g, const Step& s) { write_binary(g, s, "Add"); }},
    {op::binary, write_binary_kind},
    {op::scale, write_scale},
    {op::sum, write_sum},
    {op::cast, write_cast},
    {op::slice, write_slice},
    {op::concat, write_concat},
    {op::softmax, write_softmax},
};

const OpWriter* find_writer(Op op) {
    const auto mapping = std::ranges::find(kMappings, op, &OpWriter::op);
    return mapping == std::end(kMappings) ? nullptr : mapping;
}

// ---- file ----

/// Returns the name of input `i`.
const char* input_name(const std::vector<Shape>& samples, size_t i) {
    return i > 0 ? "numbers" : samples[0].rank() == 3 ? "image" : "x";
}

/// Declares an input. Adds nodes that normalise it if it is an image, and defines their result as the value of x.
void write_input(Graph& g, const Tensor& x, const std::string& input, const data::Normalise& normalise) {
    g.input(input, x);
    std::string value = input;
    if (x.shape().rank() == 4) {
        const auto channels = size_t(x.extent(3));
        const Ints extents{1, int64_t(channels), 1, 1};
        const auto write = [&](const char* type, const char* name, const data::Normalise::Channels& values,
                               float none) {
            const std::span used = std::span(values).first(channels);
            if (std::ranges::all_of(used, [&](float v) { return v == none; })) return;
            value = g.node(type, {value, g.constant(name, used, extents)});
        };
        write("Sub", "normalise.mean", normalise.mean, 0);
        write("Div", "normalise.deviation", normalise.deviation, 1);
    }
    g.define(x, Order::channels_first, value);
}

/// Returns the GraphProto (ONNX message of a graph) of the prediction, traced with a batch of this size; see Graph in
/// onnx_graph.h.
std::string encode_graph(const PredictFunction& predict, const Parameters& parameters,
                         const std::vector<Shape>& samples, const OnnxOptions& options, int64_t batch) {
    std::vector<Tensor> inputs, results;
    std::vector<Step> steps;
    {
        Trace trace;
        for (const Shape& sample : samples) {
            Ints extents{batch};
            extents.insert(extents.end(), sample.extents().begin(), sample.extents().end());
            inputs.push_back(Tensor::empty(Shape(extents)));
        }
        results = predict(inputs);
        steps = std::move(trace.steps);
    }
    RG_CHECK(results.size() == options.outputs.size(), "onnx: expected as many names of outputs as results, got ",
             options.outputs.size(), " names and ", results.size(), " results");
    Graph graph(parameters, batch);
    for (size_t i = 0; i < inputs.size(); ++i) write_input(graph, inputs[i], input_name(samples, i), options.normalise);
    for (const Step& step : steps) {
        const OpWriter* const mapping = find_writer(step.op);
        RG_CHECK(mapping, "onnx: expected ops that have a counterpart in ONNX, got ", step.op->name,
                 "; leave it out of the prediction");
        mapping->write(graph, step);
    }
    for (size_t i = 0; i < results.size(); ++i) graph.output(options.outputs[i], results[i]);
    return graph.message();
}

void expect_valid(const std::vector<Shape>& samples, const Parameters& parameters, const OnnxOptions& options) {
    RG_CHECK(samples.size() == 1 || (samples.size() == 2 && samples[1].rank() == 1), "onnx: expected the shape of one ",
             "image or vector, and perhaps of its numbers [k], got ", samples.size(), " shapes",
             samples.empty() ? "" : cat(", the last one ", samples.back().str()));
    const Shape& sample = samples[0];
    RG_CHECK(sample.rank() == 1 || sample.rank() == 3, "onnx: expected the shape of one image [h w c] or vector [k], ",
             "got ", sample.str(), "; leave out the batch");
    RG_CHECK(sample.rank() == 1 || sample[2] <= kMaxImageChannels, "onnx: expected at most ", kMaxImageChannels,
             " channels, got ", sample[2]);
    for (size_t c = 0; sample.rank() == 3 && c < size_t(sample[2]); ++c)
        RG_CHECK(options.normalise.deviation[c] > 0, "onnx: expected deviations above 0, got ",
                 options.normalise.deviation[c], " for channel ", c, "; give one per channel");
    std::set<std::string> names{""};
    for (size_t i = 0; i < samples.size(); ++i) names.insert(input_name(samples, i));
    for (const auto& e : parameters.entries()) names.insert(e.name);
    for (const std::string& name : options.outputs)
        RG_CHECK(names.insert(name).second, "onnx: expected names of outputs that nothing else has, got '", name,
                 "'; give each result a name of its own");
}

std::vector<Tensor> outputs_of(const Network& network, std::span<const Tensor> in) {
    return in.size() > 1 ? network.outputs(in[0], in[1], Mode::evaluate) : network.outputs(in[0], Mode::evaluate);
}

} // namespace

bool has_onnx_node(Op op) { return find_writer(op); }

std::string encode_onnx(const PredictFunction& predict, const Parameters& parameters, const std::vector<Shape>& samples,
                        const OnnxOptions& options) {
    expect_valid(samples, parameters, options);
    const std::string graph = encode_graph(predict, parameters, samples, options, 10007);
    // The size of the batch is written as -1 or "n". If the graph depends on it otherwise, two sizes give two graphs.
    RG_CHECK(
        graph == encode_graph(predict, parameters, samples, options, 10009),
        "onnx: expected a prediction that computes the same for any size of the batch, got one that depends on it");
    std::string file = int_field(1, 8) + bytes_field(2, "ringgrad") + bytes_field(3, kVersion) +
                       bytes_field(6, options.description) + bytes_field(7, graph) +
                       bytes_field(8, bytes_field(1, "") + int_field(2, 17));
    for (const auto& [name, text] : options.metadata)
        file += bytes_field(14, bytes_field(1, name) + bytes_field(2, text));
    RG_CHECK(file.size() < size_t{1} << 31, "onnx: expected a file below 2 GiB, the limit of protobuf, got ",
             file.size(), " bytes");
    return file;
}

void save_onnx(const std::string& path, const Network& network, const std::vector<Shape>& samples,
               const OnnxOptions& options) {
    const auto predict = [&](std::span<const Tensor> in) { return outputs_of(network, in); };
    write_output(path, encode_onnx(predict, network.parameters, samples, options));
}

void save_onnx(const std::string& path, const TensorFile& model) {
    std::error_code none;
    RG_CHECK(!std::filesystem::equivalent(path, model.source, none), "onnx: expected another file than the model, got ",
             path, ", which is ", model.source, "; choose another name");
    const std::unique_ptr<Network> network = make_network(model);
    const ImageTask task = stored_task(model);
    const auto [height, width] = stored_resize(model);
    const ModelOutputs outputs = stored_outputs(model);
    const size_t numbers = outputs.input_numbers.size();
    OnnxOptions options{.normalise = stored_normalise(model, {})};
    options.description = cat(
        "image: f32 [n ", task.channels, " ", task.height, " ", task.width, "], bytes / 255",
        task.channels == 3 ? ", in the order R G B" : "",
        model.find_text("resize") ? cat(", the centre of images of ", height, " x ", width) : "",
        "; the file normalises them.",
        numbers > 0 ? cat(" numbers: f32 [n ", numbers, "], as in the table of the images.") : "",
        " The outputs are scores of classes before softmax, probabilities of labels, and numbers in their units; the "
        "metadata has the names of all.");
    for (const char* const key :
         {"network", "image", "classes", "normalise", "resize", "outputs", "targets", "input_numbers"})
        if (const std::string* text = model.find_text(key)) options.metadata.emplace_back(key, *text);
    options.outputs.clear();
    for (const std::string& kind : outputs.kinds) {
        options.outputs.push_back(kind == "classes"                                  ? "scores"
                                  : kind == "numbers" && outputs.targets.size() == 1 ? outputs.targets[0].name
                                                                                     : kind);
        if (const auto same = std::ranges::count(outputs.kinds, kind); same > 1)
            options.outputs.back() += cat("_", options.outputs.size());
    }
    std::vector<Shape> samples{{task.height, task.width, task.channels}};
    if (numbers > 0) samples.push_back({int64_t(numbers)});
    const auto predict = [&](std::span<const Tensor> in) { return outputs.in_units(outputs_of(*network, in), true); };
    write_output(path, encode_onnx(predict, network->parameters, samples, options));
}

} // namespace rg
