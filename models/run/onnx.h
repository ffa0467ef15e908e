// Writes a network as an ONNX file, which ONNX Runtime, OpenVINO, TensorRT and others run.
//
//     save_onnx("net.onnx", load_model("runs/NAME")); // a network that the program has registered (nets/networks.h)
//     save_onnx("net.onnx", network, {{28, 28, 1}});  // any network whose ops have a counterpart in ONNX
//
// The file is a protobuf message (opset 17) and holds the weights. It is made from a trace of the prediction, so users
// can also write their own networks. has_onnx_node() says which ops have a counterpart in ONNX. Ops that only training
// needs have none.
//
// The input is `image`, f32 [n channels height width], for any number n of images: bytes divided by 255, as in PyTorch.
// The file contains the normalisation. A network on vectors of k values has the input `x`, f32 [n k], and no
// normalisation. A network that also takes numbers has a second input `numbers`, f32 [n k]. Inputs, outputs and weights
// are f32. Names, values and layouts of the weights are those of state_dict(). The exceptions are weights that the
// prediction uses in another shape, which are named constant_1, constant_2 and so on. For example, a 1 x 1 convolution
// of channels-last values becomes a Gemm with filters [out in].
//
// Our gelu uses the error function, not the approximation by tanh. Opset 17 has no node for gelu, so the file contains
// the nodes of its formula.
#pragma once

#include "core/layers.h"
#include "core/safetensors.h"
#include "data/augment.h"

#include <functional>

namespace rg {

struct OnnxOptions {
    std::vector<std::string> outputs = {"scores"}; // names of the outputs, one per result of the prediction
    data::Normalise normalise = {};                // normalisation of images; the default changes nothing
    std::string description = {};                  // text for people
    Metadata metadata = {};                        // texts for programs, such as the names of the classes
};

/// A prediction for n images [n height width channels] or n vectors [n k], and numbers [n k] if it takes any. Returns
/// results such as scores [n classes].
using PredictFunction = std::function<std::vector<Tensor>(std::span<const Tensor> inputs)>;

/// Returns the contents of an ONNX file for a prediction, which must read and write tensors through ops only. `samples`
/// are the shapes of one image [height width channels] or vector [k], and of its numbers [k] if it has any. If the
/// prediction reads tensors that are not in `parameters`, these become constants named constant_1 and so on. Traces the
/// prediction with batches of 10,007 and of 10,009, and throws Error if the two graphs differ: then the prediction
/// depends on the size of the batch, or an extent is a multiple of one of these numbers. Also throws Error if an
/// argument is invalid, if an op cannot be written in ONNX, or if the file would reach 2 GiB.
std::string encode_onnx(const PredictFunction& predict, const Parameters& parameters, const std::vector<Shape>& samples,
                        const OnnxOptions& options = {});

/// Writes the result of encode_onnx() for a network's prediction to a file, with write_output() (core/atomic_file.h).
void save_onnx(const std::string& path, const Network& network, const std::vector<Shape>& samples,
               const OnnxOptions& options = {});
/// Writes the network in a trained model's file as an ONNX file. Takes the normalisation from the model, and its
/// metadata network, image, classes, normalise, resize, outputs, targets and input_numbers. An output of classes is
/// named `scores`, a single number has its own name, and the others have those of their kind (ModelOutputs). Scores are
/// those before softmax; all else has the values that `predict` prints: `labels` probabilities, numbers units. Throws
/// Error like encode_onnx(), if the program has not registered the network, and if `path` leads to the model's file.
void save_onnx(const std::string& path, const TensorFile& model);

/// Returns true if encode_onnx() can write this op, at least with some attributes.
bool has_onnx_node(Op op);

} // namespace rg
