// Predicts with a trained network. Needs only the file of the model, no options of the training.
//
//     const CpuScope scope;
//     Predictor model("runs/flowers");
//     const Predictor::Predictions outputs = model.predict(std::array{data::read_image("rose.jpg")});
//     const auto scores = outputs.scores.span<float>(); // a probability for each of model.classes
//
// The file says which network it holds. The program must know this network: register your own ones
// (models/nets/networks.h).
//
// Threads may share a Predictor: their predictions wait for each other. Several Predictors run in parallel, if each
// thread has a thread pool of its own. Threads that run work of in_this_context() share a pool, so they need a lock.
#pragma once

#include "core/accelerate.h"
#include "data/decode.h"
#include "models/run/model_file.h"

#include <map>
#include <memory>
#include <mutex>
#include <span>

namespace rg {

class Predictor {
public:
    /// Load the model of `path` (see load_model()), or one whose file decode_model() has decoded, into the memory of
    /// the context's device, or host memory if it has none. Activations have the type `activations`, f32 or bf16. Throw
    /// Error if the file is missing or malformed, if it does not describe a network that this program knows, or if an
    /// output is neither classes, nor numbers, nor labels: export such a network.
    explicit Predictor(const std::string& path, DType activations = DType::f32);
    explicit Predictor(const TensorFile& file, DType activations = DType::f32);

    const ImageTask task;         // size and channels of the network's inputs, and number of classes
    const data::ImageSize resize; // size to which images are converted; the network gets their central window
    const ModelOutputs outputs;
    const std::vector<std::string> classes; // empty if no output gives classes
    const std::vector<TargetInfo> targets;  // numbers and labels that the network predicts; may be empty
    /// Views of each image, whose outputs are added with their weights; see data::mirrored_and_shifted().
    std::vector<data::WeightedView> views = {{}};

    struct Predictions {
        Tensor scores;               // f32 [n classes]: probabilities; undefined without classes
        std::vector<Tensor> targets; // f32 [n 1] for each target: its value, or of a label its probability
        Tensor features;             // f32 [n k] of `layer`; undefined without a layer
    };
    /// Predict for n images of any size and number of channels as one batch, and return the results in host memory.
    /// Images are converted to the size `resize` and the network's channels, as in the training. read(i) returns image
    /// i, for example by data::read_image(). Several threads call it at the same time, and it must not use this
    /// object, which is locked meanwhile. `numbers` are [n k] for the k names in outputs.input_numbers. With `layer`,
    /// also return the features that this layer gives (see feature_count()). Split many images into calls of the same
    /// n, up to some 256: the memory grows with n, and the first call with a new n takes longer. Throw Error like
    /// read() and the function below.
    Predictions predict(int64_t n, const data::ReadImage& read, std::span<const float> numbers = {},
                        const std::string& layer = "");
    Predictions predict(std::span<const data::Image> images, std::span<const float> numbers = {},
                        const std::string& layer = "");
    /// Predicts for images [n height width channels] of the size `resize`, of 8 bits; n follows from the number of
    /// bytes. Throws Error if n is 0, if `pixels` is not a whole number of images, if there are not k numbers for each
    /// image, if there is no such layer, or if a result is not finite.
    Predictions predict(std::span<const uint8_t> pixels, std::span<const float> numbers = {},
                        const std::string& layer = "");
    /// Does the same, and writes a row per image to `rows` [n][c + t + k]: a probability for each of c classes, t
    /// targets, and k features of the layer. Throws Error if `rows` has another size. On a CPU, allocates no memory if
    /// the last prediction had the same n, layer and number of threads, and `views` is the default. (Each thread
    /// allocates scratch memory when it first runs a kernel.)
    void predict_rows(std::span<const uint8_t> pixels, std::span<float> rows, std::span<const float> numbers = {},
                      const std::string& layer = "");
    /// Returns the pixels that the function above takes, of n images of any size. Arguments are those of predict().
    data::Pixels converted(int64_t n, const data::ReadImage& read);
    /// Returns the number k of features that a layer gives for an image, or 0 for "". `layer` is a name of
    /// LayerOutputs (core/layers.h), such as "layer4" of a residual network. Its features are the means of its channels
    /// over all pixels. Throws Error, which lists the layers, if there is no such one.
    int64_t feature_count(const std::string& layer) const;

private:
    std::vector<Tensor> forward(std::span<const Tensor> in, const std::string& layer) const;
    std::vector<Tensor> finished(std::vector<Tensor> results) const;
    void run(std::span<const uint8_t> pixels, std::span<const float> numbers, const std::string& layer);

    const std::string source_; // the file, for error texts
    const std::unique_ptr<Network> network_;
    const data::Augmenter normaliser_;
    const DType activations_;
    std::map<std::string, Accelerated> forward_; // by layer
    std::vector<Tensor> inputs_, results_;       // of the last prediction; see run()
    std::mutex in_use_;
};

/// Adds the outputs of a network for a view of its images, times the weight of the view, to `sums`: f32 in host memory,
/// and empty before the first view.
void add_weighted(std::vector<Tensor>& sums, std::span<const Tensor> outputs, float weight);

} // namespace rg
