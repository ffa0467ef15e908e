// Converts a network's values to PyTorch's names and layouts, and back. So a PyTorch module with the same structure can
// load our files, and we can load its files.
//
// Filters change from K R S C to O I H W; vectors and dense weights stay the same. A batch-norm layer has running_mean,
// running_var and num_batches_tracked.
#pragma once

#include "ringgrad/core/parameters.h"
#include "ringgrad/core/safetensors.h"

namespace rg {

/// Returns a copy in host memory, with the last of four extents moved to the second place: filters K R S C become
/// O I H W, images N H W C become N C H W. Copies of other tensors have the same shape. Takes f32 only.
Tensor channels_first(const Tensor& channels_last);

/// Returns copies of all values of the network in host memory, with PyTorch's names and layouts.
std::vector<NamedTensor> state_dict(const Parameters& parameters);

/// Throws Error if a tensor is missing, has another type or shape, or is unknown to the network, if a value is not
/// finite, or if a variance is negative. Leaves out tensors of the network and of the file whose names begin with a
/// text of `skip`. Throws Error if a text of `skip` begins no name. Reads no value of the network, so it may be made in
/// a DryRun.
void check_state_dict(const Parameters& parameters, const TensorFile& file, const std::vector<std::string>& skip = {});

/// Sets every value of the network that is not left out from the file. Throws Error, and changes nothing, if
/// check_state_dict() does.
void load_state_dict(Parameters& parameters, const TensorFile& file, const std::vector<std::string>& skip = {});

} // namespace rg
