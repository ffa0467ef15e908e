// Writes and reads what the file of a trained model says about itself: its network, and the size, classes and
// normalisation of its images. nets/networks.h makes the network again.
#pragma once

#include "ringgrad/data/augment.h"
#include "ringgrad/models/nets/networks.h"

namespace rg {

/// A number that a network predicts beside the class, such as an angle in degrees.
struct Target {
    std::string name, unit;
};

/// Returns the task of a network for images like these.
ImageTask task_of(const data::ImageSet& images, uint64_t seed);

/// Returns the metadata of the model's file: NetworkChoice::describe() of its network, the size of the images, the
/// names of the classes, the normalisation of the images, and the targets if there are any.
Metadata describe_model(const Json& network, const data::ImageSet& images, const data::Normalise& normalise,
                        const std::vector<Target>& targets = {});

/// Loads the file of a model: a safetensors file, a checkpoint, or the model in a run's folder. Leaves out the state of
/// the optimizer. Throws Error like load_tensors() and load_checkpoint().
TensorFile load_model(std::string path);

/// Returns the names of the classes in the file of a model. Throws Error if it has none.
std::vector<std::string> stored_classes(const TensorFile& file);

/// Returns the targets in the file of a model, or none.
std::vector<Target> stored_targets(const TensorFile& file);

/// Returns the normalisation in a model's file, or `fallback` if the file has none.
data::Normalise stored_normalise(const TensorFile& file, const data::Normalise& fallback);

} // namespace rg
