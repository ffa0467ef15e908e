// Predicts with a trained network. Needs only the file of the model, no options of the training.
//
//     const CpuScope scope;
//     Predictor model("runs/flowers");
//     const Predictor::Outputs outputs = model.predict(std::array{data::read_png("rose.png")});
//     const auto scores = outputs.scores.span<float>(); // a probability for each class of model.classes
//
// The file says which network it holds. The program must know this network: register your own ones
// (models/nets/networks.h).
#pragma once

#include "ringgrad/core/accelerate.h"
#include "ringgrad/data/png.h"
#include "ringgrad/models/run/model_file.h"

#include <memory>
#include <span>

namespace rg {

class Predictor {
public:
    /// Loads the model of `path` (see load_model()) into the memory of the context's device, or host memory if it has
    /// none. Activations have the type `activations`, f32 or bf16. Throws Error if the file is missing or malformed, or
    /// does not describe a network that this program knows.
    explicit Predictor(const std::string& path, DType activations = DType::f32);

    const ImageTask task;         // size and channels of the network's inputs, and number of classes
    const data::ImageSize resize; // size of images, of which the network gets the central window of the task's size
    const std::vector<std::string> classes;
    const std::vector<Target> targets;

    struct Outputs {
        Tensor scores;               // f32 [n classes]: probabilities
        std::vector<Tensor> targets; // f32 [n 1] for each target
    };
    /// Predicts for n images of any size and number of channels, such as the PNGs of data::png_files(), as one batch.
    /// For many, call it with up to some 256 at a time: each n has its own plan. Converts them to the size `resize` and
    /// the network's channels, as the training did. The results are in host memory. Throws Error like the function
    /// below.
    Outputs predict(std::span<const data::Image> images);
    /// Predicts for images [n height width channels] of the size `resize`, of 8 bits; n follows from the number of
    /// bytes. Throws Error if n is 0, if `pixels` is not a whole number of images, or if a result is not finite.
    Outputs predict(std::span<const uint8_t> pixels);

private:
    Predictor(const TensorFile& file, DType activations);

    const std::string source_; // the file, for error texts
    const std::unique_ptr<Network> network_;
    const data::Augmenter normaliser_;
    Accelerated forward_;
};

} // namespace rg
