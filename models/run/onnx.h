// Writes a network as an ONNX file, which ONNX Runtime, OpenVINO, TensorRT and others run.
//
//     save_onnx("net.onnx", load_model("runs/NAME")); // a network that the program has registered (nets/networks.h)
//     save_onnx("net.onnx", network, {28, 28, 1});    // any network
//
// The file is a protobuf message (opset 17) and holds the weights. It comes from a trace of the prediction, so it
// serves every network whose ops have a counterpart in ONNX, also one from outside of this tree. Training-only ops have
// none.
//
// The input is `image`, f32 [n c h w]: bytes divided by 255, as in PyTorch. The file normalises them itself. n is free.
// A network on vectors has the input `x`, f32 [n k], and no normalisation. Images within the file are N C H W, filters
// O I H W; names and values of the weights are those of state_dict(). Types are f32 throughout, so casts are left out.
//
// Our gelu uses the error function, so it is not the approximation by tanh. Opset 17 has no node for it; the file has
// its formula.
#pragma once

#include "ringgrad/core/layers.h"
#include "ringgrad/core/safetensors.h"
#include "ringgrad/data/augment.h"

#include <functional>

namespace rg {

struct OnnxOptions {
    std::vector<std::string> outputs = {"scores"}; // names of the outputs, one per result of the prediction
    data::Normalise normalise = {};                // of the images; the default leaves them as they are
    std::string description = {};                  // text for people
    Metadata metadata = {};                        // texts for programs, such as the names of the classes
};

/// A prediction: the results, such as scores [n classes], for inputs [n h w c] or [n k].
using PredictFunction = std::function<std::vector<Tensor>(const Tensor& x)>;

/// Returns the contents of an ONNX file for a prediction, which must read and write tensors through ops only. `sample`
/// is the shape of one input: [h w c] or [k]. Tensors that are not in `parameters` become constants. Traces the
/// prediction with two sizes of the batch. Throws Error if an op has no counterpart in ONNX, if the prediction depends
/// on the size of the batch (or has an extent above 10,000 that looks like it), or if the file would exceed 2 GiB.
std::string encode_onnx(const PredictFunction& predict, const Parameters& parameters, const Shape& sample,
                        const OnnxOptions& options = {});

/// Writes encode_onnx() of a network's prediction to a file, as write_output() does (core/atomic_file.h).
void save_onnx(const std::string& path, const Network& network, const Shape& sample, const OnnxOptions& options = {});
/// Does the same with the network in the file of a model. Takes the normalisation from it, and the metadata that
/// describe the model: network, image, classes, normalise and targets. The outputs are `scores` and the targets' names.
/// Throws Error if the program has not registered the network.
void save_onnx(const std::string& path, const TensorFile& model);

/// Returns true if encode_onnx() can write this op.
bool has_onnx_node(Op op);

} // namespace rg
