// The graph of an ONNX file: nodes, constants, and the forms of each value (a tensor of the traced prediction).
//
// Our images have their channels last, those of ONNX have them first. So a value may have several forms in the file:
// one for each shape that the trace uses, in the order of our memory or with channels first. Graph::form_of() makes a
// form when a node first needs it. So there is a Transpose only where channels must move, for example between a
// convolution and a dense layer.
#pragma once

#include "core/parameters.h"

#include <map>

namespace rg::onnx {

using Ints = std::vector<int64_t>;

/// Order of the elements of a form. `channels_last` is the order of our memory: [n height width channels] for images.
/// Only values of four extents can have `channels_first`, which is [n channels height width].
enum class Order : uint8_t { channels_last, channels_first };

/// Return an encoded attribute of a node. If a node has several, concatenate the texts.
std::string attribute(const char* name, int64_t value);
std::string attribute(const char* name, float value);
std::string attribute(const char* name, const char* value);
std::string attribute(const char* name, const Ints& values);

class Graph {
public:
    /// `batch` is the number of images or vectors in the traced prediction. It must be a prime number that divides no
    /// other extent in the trace. So an extent is a multiple of `batch` only if it depends on the size of the batch.
    Graph(const Parameters& parameters, int64_t batch);

    /// Declares an input of the file, with the extents that x has in ONNX. Then call define() for x.
    void input(const std::string& name, const Tensor& x);
    /// Adds an output with this name, whose value is that of t.
    void output(const std::string& name, const Tensor& t);

    /// Adds a node with one output, and returns the name of the output.
    std::string node(const char* type, const std::vector<std::string>& inputs, const std::string& attributes = {});
    /// Add a constant, unless there is one of the same name, and return its name. scalar() and ints() make the name
    /// from the value. A scalar has no extents.
    std::string scalar(float value);
    std::string constant(const std::string& name, std::span<const float> values, std::span<const int64_t> extents);
    std::string ints(const Ints& values);

    /// States that the node output or input `name` is the value of t, in this order and in the shape of t.
    void define(const Tensor& t, Order order, const std::string& name);
    /// Returns the name of the form of t that has this order and the shape of t. Adds the nodes that make this form, if
    /// there are none yet. For a t with memory, adds a constant instead.
    std::string form_of(const Tensor& t, Order order);
    /// Returns channels_first if the graph already has t in that order and in its shape, else channels_last. A node
    /// that accepts both orders should read t in the returned order, which saves a Transpose.
    Order order_of(const Tensor& t) const;

    /// Returns true if the extent depends on the size of the batch: then it is a multiple of the constructor's `batch`.
    bool depends_on_batch(int64_t extent) const { return extent > 0 && extent % batch_ == 0; }

    /// Returns the GraphProto, without nodes and constants that no output depends on.
    std::string message() const;

    /// A concatenation of `count` copies of `image`. It may be the first of the two concatenations in an upsample(). In
    /// `repeated_images`, its key is that of its result, by which write_upsample() (onnx.cpp) finds it.
    struct RepeatedImage {
        Tensor image;
        int64_t count;
    };
    std::map<Tensor::Key, RepeatedImage> repeated_images;

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
    /// Returns the ValueInfoProto (ONNX message of an input or output) of t, with this name.
    std::string value_message(const std::string& name, const Tensor& t) const;
    std::string constant_form(const Tensor& t, Order order);
    std::string reshape(const std::string& input, const Ints& extents) {
        return node("Reshape", {input, ints(extents)});
    }
    /// Returns a form of t, in any shape, whose elements are in the order `channels_last`. Adds one if there is none
    /// yet.
    Form channels_last_form(const Tensor& t);

    int64_t batch_;
    std::map<std::pair<Tensor::Key, std::string>, std::string> names_; // (key, shape) of a constant -> its name
    std::map<Tensor::Key, std::vector<Form>> forms_;
    std::vector<Node> nodes_;
    std::map<std::string, std::string> constants_; // name -> TensorProto
    std::map<std::string, int> counts_;            // number of nodes of each type
    std::vector<std::string> outputs_;
    std::string values_; // encoded fields of the GraphProto: its inputs and outputs
    int unnamed_ = 0;    // number of constants named constant_1, constant_2, ...
};

} // namespace rg::onnx
