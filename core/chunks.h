// Splits the steps of a prediction into chunks of images, so that intermediates stay in the caches.
#pragma once

#include "core/step.h"

#include <vector>

namespace rg {

/// Replaces steps that compute each image of a batch on its own (OpRow::images) by copies of them, one for each of
/// several chunks of the images. All copies for the first chunk come first, then those for the second, and so on. With
/// `threads` threads, the step with the largest tensors then reads and writes at most a few MiB per thread and chunk.
/// `placeholders` are the inputs of the function that was traced, and `results` its results. Returns the number of
/// steps per chunk. If a step mixes images, or too few images would be in a chunk, leaves `steps` alone and returns
/// their number.
size_t split_into_chunks(std::vector<Step>& steps, std::span<const Tensor> placeholders,
                         std::span<const Tensor> results, int64_t threads);

} // namespace rg
