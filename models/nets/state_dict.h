// Converts a network's values to PyTorch's names and layouts, and back. So a PyTorch module with the same structure can
// load our files, and we can load its files.
//
// Filters change from K R S C to O I H W; vectors and dense weights stay the same. A batch-norm layer has running_mean,
// running_var and num_batches_tracked.
#pragma once

#include "ringgrad/core/parameters.h"
#include "ringgrad/core/safetensors.h"

namespace rg {

/// Returns copies of all values of the network in host memory, with PyTorch's names and layouts.
std::vector<NamedTensor> state_dict(const Parameters& parameters);

/// Sets every value of the network from the file. Throws Error, and changes nothing, if a tensor is missing, has
/// another type or shape, or is unknown to the network, if a value is not finite, or if a variance is negative.
void load_state_dict(Parameters& parameters, const TensorFile& file);

} // namespace rg
