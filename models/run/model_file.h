// Writes and reads what the file of a trained model says about its images: their classes and normalisation.
#pragma once

#include "ringgrad/core/safetensors.h"
#include "ringgrad/data/augment.h"

namespace rg {

/// Returns the metadata of the model's file: the names of the classes, and the normalisation of the images.
Metadata describe_model(const data::ImageSet& images, const data::Normalise& normalise);

/// Returns the normalisation in a model's file, or `fallback` if the file has none.
data::Normalise stored_normalise(const TensorFile& file, const data::Normalise& fallback);

} // namespace rg
