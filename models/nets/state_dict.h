// A network's values under PyTorch's names and in PyTorch's layouts, so that `load_state_dict` takes our files and we
// take those of a PyTorch module with the same structure.
//
// Filters turn from K R S C into O I H W; vectors and dense weights are the same. A batch-norm layer gives
// running_mean, running_var and num_batches_tracked.
#pragma once

#include "core/parameters.h"
#include "core/safetensors.h"

namespace rg {

std::vector<NamedTensor> state_dict(const Parameters& parameters);

/// Takes every value of the network from the file. Error, before anything is changed: a tensor is missing, has another
/// type or shape, or is unknown to the network; a value is not finite; a variance is negative.
void load_state_dict(Parameters& parameters, const TensorFile& file);

} // namespace rg
