// Splits the steps of a prediction into chunks of images, so that intermediates stay in the caches.
#pragma once

#include "core/step.h"

#include <utility>
#include <vector>

namespace rg {

/// Replaces the first steps, which compute each image of a batch on its own (OpRow::images), by copies of them, one for
/// each of several chunks of the images. All copies for the first chunk come first, then those for the second, and so
/// on. In a chunk, no step reads and writes more than a few MiB per thread. The steps that follow compute all images at
/// once. `placeholders` are the inputs of the function that was traced, and `results` its results. Leaves `steps` alone
/// if chunks would save less than they cost, since they read the parameters again, or would have too few images. The
/// results have the same bits with any number of chunks.
/// Returns the number of steps per chunk, and the number of chunks.
std::pair<size_t, size_t> split_into_chunks(std::vector<Step>& steps, std::span<const Tensor> placeholders,
                                            std::span<const Tensor> results, int64_t threads);

} // namespace rg
