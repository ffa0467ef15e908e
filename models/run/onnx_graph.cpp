// See onnx_graph.h. Field numbers are those of onnx.proto.
#include "models/run/onnx_graph.h"

#include "core/formatted.h"
#include "models/nets/state_dict.h"
#include "models/run/protobuf.h"

#include <set>

namespace rg::onnx {

using namespace protobuf;

namespace {

constexpr int kFloat = 1, kInt64 = 7; // of TensorProto.DataType

std::string tensor_message(const std::string& name, int type, std::span<const int64_t> extents,
                           const std::string& little_endian_values) {
    std::string message;
    for (const int64_t extent : extents) message += int_field(1, extent);
    return message + int_field(2, type) + bytes_field(8, name) + bytes_field(9, little_endian_values);
}

/// Returns true if a tensor of this shape has its elements in the same order for both values of Order.
bool same_in_both(const Shape& s) { return s.rank() != 4 || s[3] == 1 || s[1] * s[2] == 1; }

} // namespace

std::string attribute(const char* name, int64_t value) {
    return bytes_field(5, bytes_field(1, name) + int_field(3, value) + int_field(20, 2));
}
std::string attribute(const char* name, float value) {
    return bytes_field(5, bytes_field(1, name) + float_field(2, value) + int_field(20, 1));
}
std::string attribute(const char* name, const char* value) {
    return bytes_field(5, bytes_field(1, name) + bytes_field(4, value) + int_field(20, 3));
}
std::string attribute(const char* name, const Ints& values) {
    std::string field = bytes_field(1, name);
    for (const int64_t value : values) field += int_field(8, value);
    return bytes_field(5, field + int_field(20, 7));
}

Graph::Graph(const Parameters& parameters, int64_t batch) : batch_(batch) {
    const auto set_name = [&](const Tensor& t, const std::string& name) { names_[{t.key(), t.shape().str()}] = name; };
    for (const auto& e : parameters.entries()) set_name(e.value, e.name);
    for (const auto& s : parameters.states()) {
        set_name(s.running.slice(0, {s.channels}), s.name + ".running_mean");
        set_name(s.running.slice(s.channels, {s.channels}), s.name + ".running_var");
    }
}

void Graph::input(const std::string& name, const Tensor& x) { values_ += bytes_field(11, value_message(name, x)); }

void Graph::output(const std::string& name, const Tensor& t) {
    add_node("Identity", {form_of(t, Order::channels_first)}, name);
    outputs_.push_back(name);
    values_ += bytes_field(12, value_message(name, t));
}

std::string Graph::value_message(const std::string& name, const Tensor& t) const {
    std::string shape;
    for (const int64_t extent : extents(t.shape(), Order::channels_first))
        shape += bytes_field(1, extent < 0 ? bytes_field(2, "n") : int_field(1, extent));
    return bytes_field(1, name) + bytes_field(2, bytes_field(1, int_field(1, kFloat) + bytes_field(2, shape)));
}

std::string Graph::node(const char* type, const std::vector<std::string>& inputs, const std::string& attributes) {
    const std::string name = cat(type, "_", ++counts_[type]);
    add_node(type, inputs, name, attributes);
    return name;
}

void Graph::add_node(const char* type, const std::vector<std::string>& inputs, const std::string& output,
                     const std::string& attributes) {
    std::string message;
    for (const std::string& input : inputs) message += bytes_field(1, input);
    message += bytes_field(2, output) + bytes_field(3, output) + bytes_field(4, type) + attributes;
    nodes_.push_back({inputs, output, message});
}

std::string Graph::scalar(float value) {
    return constant(formatted("scalar_%.9g", double(value)), std::span(&value, 1), {});
}

std::string Graph::constant(const std::string& name, std::span<const float> values, std::span<const int64_t> extents) {
    std::string bytes;
    bytes.reserve(4 * values.size());
    for (const float value : values) bytes += little_endian(std::bit_cast<uint32_t>(value));
    constants_.emplace(name, tensor_message(name, kFloat, extents, bytes));
    return name;
}

std::string Graph::ints(const Ints& values) {
    std::string name = "ints", bytes;
    for (const int64_t value : values) name += cat("_", value), bytes += little_endian(uint64_t(value));
    constants_.emplace(name, tensor_message(name, kInt64, Ints{int64_t(values.size())}, bytes));
    return name;
}

void Graph::define(const Tensor& t, Order order, const std::string& name) {
    forms_[t.key()].push_back({t.shape(), t.shape().rank() == 4 ? order : Order::channels_last, name});
}

Ints Graph::extents(const Shape& s, Order order) const {
    Ints extents(s.extents().begin(), s.extents().end());
    if (order == Order::channels_first && s.rank() == 4) extents = {s[0], s[3], s[1], s[2]};
    int free = 0;
    for (int64_t& extent : extents)
        if (depends_on_batch(extent)) extent = -1, ++free;
    RG_CHECK(free <= 1, "onnx: expected one extent that depends on the size of the batch, got ", free, " in ", s.str());
    return extents;
}

Order Graph::order_of(const Tensor& t) const {
    if (const auto entry = forms_.find(t.key()); entry != forms_.end())
        for (const Form& form : entry->second)
            if (form.order == Order::channels_first && form.shape == t.shape()) return form.order;
    return Order::channels_last;
}

std::string Graph::form_of(const Tensor& t, Order order) {
    if (t.shape().rank() != 4) order = Order::channels_last;
    if (t.has_memory()) return constant_form(t, order);
    const auto find = [&] {
        for (const Form& form : forms_[t.key()])
            if (form.shape == t.shape() && form.order == order) return form.name;
        return std::string();
    };
    if (const std::string name = find(); !name.empty()) return name;
    const Form rows = channels_last_form(t);
    if (const std::string name = find(); !name.empty()) return name; // channels_last_form() has made it
    std::string name;
    if (order == Order::channels_last || same_in_both(t.shape()))
        name = reshape(rows.name, extents(t.shape(), order));
    else
        name = node("Transpose", {form_of(t, Order::channels_last)}, attribute("perm", Ints{0, 3, 1, 2}));
    define(t, order, name);
    return name;
}

Graph::Form Graph::channels_last_form(const Tensor& t) {
    const std::vector<Form>& forms = forms_[t.key()];
    RG_CHECK(!forms.empty() && forms.front().shape.numel() == t.numel(), "onnx: expected a value that the prediction ",
             "computes, got a view of ", t.shape().str(), " that Tensor::slice() made, or a result that ONNX does not ",
             "have; use the op slice(), and running statistics for batch norm");
    for (const Form& form : forms)
        if (form.order == Order::channels_last || same_in_both(form.shape)) return form;
    const Form first = forms.front();
    const std::string name = node("Transpose", {first.name}, attribute("perm", Ints{0, 2, 3, 1}));
    const Form rows{first.shape, Order::channels_last, name};
    forms_[t.key()].push_back(rows);
    return rows;
}

std::string Graph::constant_form(const Tensor& t, Order order) {
    RG_CHECK(t.dtype() == DType::f32, "onnx: expected constants in f32, got ", name_of(t.dtype()), " ",
             t.shape().str());
    std::string& stored = names_[{t.key(), t.shape().str()}];
    if (stored.empty()) stored = cat("constant_", ++unnamed_);
    // A constant of four extents, such as filters, has its name in the order channels_first. In the order rows it needs
    // another name.
    const std::string name = t.shape().rank() == 4 && order == Order::channels_last ? stored + ".rows" : stored;
    if (constants_.contains(name)) return name;
    const Tensor values = order == Order::channels_first ? channels_first(t) : t.to_host();
    return constant(name, values.span<float>(), values.shape().extents());
}

std::string Graph::message() const {
    std::set<std::string> needed(outputs_.begin(), outputs_.end());
    std::string nodes; // the loop goes from the last node to the first, so a node comes after all that read its output
    for (auto n = nodes_.rbegin(); n != nodes_.rend(); ++n)
        if (needed.contains(n->output)) {
            needed.insert(n->inputs.begin(), n->inputs.end());
            nodes.insert(0, bytes_field(1, n->message));
        }
    std::string graph = nodes + bytes_field(2, "network");
    for (const auto& [name, message] : constants_)
        if (needed.contains(name)) graph += bytes_field(5, message);
    return graph + values_;
}

} // namespace rg::onnx
