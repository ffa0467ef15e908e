// Makes and reads the metadata in the file of a trained model: its network, and the sizes, classes, normalisation and
// targets of its images. make_network() (nets/networks.h) makes the network from the file.
#pragma once

#include "data/augment.h"
#include "models/nets/networks.h"

namespace rg {

/// A number or a label that a network predicts, such as an angle in degrees. The network's output, times `deviation`
/// and plus `mean`, is the number in its unit; see Task::set_target_scales().
struct TargetInfo {
    std::string name, unit = "";
    double mean = 0, deviation = 1;
};

/// Returns the task of a network for these images: the size of its inputs, the numbers of channels, classes and
/// targets, and the `seed`.
ImageTask task_of(const data::ImageSet& images, uint64_t seed);

/// The meaning of a network's outputs, and its further inputs, as the file of a model stores them.
struct ModelOutputs {
    /// Each output has a kind. "classes": scores [n classes] before softmax; "numbers": [n k], see TargetInfo;
    /// "labels": scores [n k] before the sigmoid, of labels that each may apply or not; "pixels": scores of each pixel
    /// [n h w classes]; "reconstruction": images [n h w c].
    std::vector<std::string> kinds = {"classes"};
    std::vector<TargetInfo> targets = {};          // the names of all numbers and labels
    data::Labels labels = data::Labels::one_class; // kind of the labels of the images
    /// The names of the numbers that the network takes beside each image, as [n k]: columns of the table of the images.
    /// Most networks take none.
    std::vector<std::string> input_numbers = {};

    /// Returns the outputs of a network, with numbers in their units. If `probabilities` is true, the scores of labels
    /// become probabilities. Other kinds stay as they are. May be traced.
    std::vector<Tensor> in_units(std::vector<Tensor> results, bool probabilities = false) const;
};
/// Returns numbers [n k] of the first k targets, minus their means and divided by their deviations, or if `back` is
/// true, the inverse. May be traced.
Tensor standardised(const Tensor& values, std::span<const TargetInfo> targets, bool back);

/// Returns the metadata of the model's file: NetworkChoice::describe() of its network, the size of its inputs, the
/// names of the classes, and the normalisation of the images; if inputs are windows of the images, the size of the
/// images; what the outputs mean; and the names of the numbers that the network takes.
Metadata describe_model(const Json& network, const data::ImageSet& images, const data::Normalise& normalise,
                        const ModelOutputs& outputs = {});

/// Decodes the bytes of a model's file: a safetensors file, a checkpoint, or a file of PyTorch's torch.save(), which
/// has values alone. Leaves out the optimizer's state of a checkpoint. `source` is for error texts. Throws Error like
/// decode_tensors() and decode_torch_file().
TensorFile decode_model(std::string_view bytes, const std::string& source);
/// Returns the path of a model's file: `path` itself, or if that is a run's folder, the file of the model that the run
/// tests in the end. With --validation, this is model-best.safetensors, if it exists, except in a trial of a sweep;
/// otherwise model.safetensors. Throws Error if there is none.
std::string model_path(std::string path);
/// Loads the file model_path(path). Throws Error like model_path(), read_file() and decode_model().
TensorFile load_model(const std::string& path);
/// Returns the config.json of the run to which `model` belongs, and sets `folder` to the folder of the run. `model` is
/// that folder, or a file in it or in its checkpoint folder. Returns null if there is no such config.json.
Json config_of(const std::string& model, std::string& folder);

/// Returns the names of the classes in the file of a model. Throws Error if they are missing or malformed.
std::vector<std::string> stored_classes(const TensorFile& file);

/// Returns the meaning of a network's outputs that the file of its model stores. Throws Error if that is malformed.
ModelOutputs stored_outputs(const TensorFile& file);

/// Returns the size to which images are resized and cropped before the network gets their central window, or that of
/// the network's inputs if the file has none. Throws Error if it is malformed, or smaller than the inputs.
data::ImageSize stored_resize(const TensorFile& file);

/// Returns the normalisation in a model's file, or `fallback` if the file has none. Throws Error if it is malformed.
data::Normalise stored_normalise(const TensorFile& file, const data::Normalise& fallback);

} // namespace rg
