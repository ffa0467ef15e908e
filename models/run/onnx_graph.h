// The graph of an ONNX file: nodes, constants, and the forms in which the values of a trace occur.
//
// Our images are N H W C, those of ONNX N C H W. A value of the trace may therefore have several forms in the file: its
// elements in the order of our memory, in any shape that the trace views it in, or as N C H W. Graph::read() makes a
// form when a node first needs it. So there is a Transpose only where channels really change their place, as between a
// convolution and a dense layer that reads h * w * c values.
#pragma once

#include "ringgrad/core/parameters.h"

#include <map>

namespace rg::onnx {

using Ints = std::vector<int64_t>;

/// Order of the elements of a form. Only values of four extents can have `channels_first`; the others have `rows`, the
/// order of our memory.
enum class Order : uint8_t { rows, channels_first };

/// Encode an attribute of a node. The attributes of a node follow each other.
std::string attribute(const char* name, int64_t value);
std::string attribute(const char* name, float value);
std::string attribute(const char* name, const char* value);
std::string attribute(const char* name, const Ints& values);

class Graph {
public:
    /// `batch` is the number of inputs in the trace. It must be a prime number above all extents of the network. So an
    /// extent is a multiple of it only if it depends on the batch.
    Graph(const Parameters& parameters, int64_t batch);

    /// Adds an input whose value is not that of a tensor yet, in the extents that x has in ONNX.
    void input(const std::string& name, const Tensor& x);
    /// Adds an output, which is the value of t.
    void output(const std::string& name, const Tensor& t);

    /// Adds a node with one output, and returns the name of the output.
    std::string node(const char* type, const std::vector<std::string>& inputs, const std::string& attributes = {});
    /// Add a constant, if there is none of that name and value yet, and return its name. A scalar has no extents.
    std::string scalar(float value);
    std::string constant(const std::string& name, std::span<const float> values, std::span<const int64_t> extents);
    std::string ints(const Ints& values);

    /// States that `name` is the value of t, in the shape of t.
    void define(const Tensor& t, Order order, const std::string& name);
    /// Returns the name of t in this order. Adds nodes that make it if there is none yet.
    std::string read(const Tensor& t, Order order);
    /// Returns the order in which t exists in its shape, so that reading it needs no Transpose.
    Order order_of(const Tensor& t) const;

    /// Returns true if the extent is a multiple of the size of the batch.
    bool depends_on_batch(int64_t extent) const { return extent > 0 && extent % batch_ == 0; }

    /// Returns the GraphProto, without nodes and constants that no output depends on.
    std::string message() const;

    /// Copies of an image behind each other, the first half of upsample().
    struct Copies {
        Tensor image;
        int64_t count;
    };
    std::map<Tensor::Key, Copies> copies;

private:
    struct Node {
        std::vector<std::string> inputs;
        std::string output, message;
    };
    struct Form {
        Shape shape;
        Order order;
        std::string name;
    };

    void add_node(const char* type, const std::vector<std::string>& inputs, const std::string& output,
                  const std::string& attributes = {});
    /// Returns the extents in ONNX, with -1 for the one that depends on the batch.
    Ints extents(const Shape& shape, Order order) const;
    /// Returns the ValueInfoProto of t as an input or output.
    std::string value_message(const std::string& name, const Tensor& t) const;
    std::string read_constant(const Tensor& t, Order order);
    std::string reshape(const std::string& input, const Ints& extents) {
        return node("Reshape", {input, ints(extents)});
    }
    /// Returns the form whose elements are in the order of rows. Adds one if there is none yet.
    Form rows_of(const Tensor& t);

    int64_t batch_;
    std::map<std::pair<Tensor::Key, std::string>, std::string> names_; // (place, shape) of a constant -> name
    std::map<Tensor::Key, std::vector<Form>> forms_;
    std::vector<Node> nodes_;
    std::map<std::string, std::string> constants_; // name -> TensorProto
    std::map<std::string, int> counts_;            // nodes of each type
    std::vector<std::string> outputs_;
    std::string values_; // the fields of inputs and outputs
    int unnamed_ = 0;    // number of constants that are not parameters
};

} // namespace rg::onnx
