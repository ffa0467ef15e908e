// Converts a network's values to PyTorch's names and layouts, and back. So a PyTorch module with the same structure can
// load our files, and we can load its files.
//
// Filters have the extents [output channels, height, width, input channels] here, and [output channels, input channels,
// height, width] in PyTorch. Vectors and dense weights are the same in both. But a dense layer on a whole image, as in
// digits_net.h, needs the image's values in the order [height width channels] in PyTorch, too. A batch-norm layer has
// running_mean, running_var and num_batches_tracked.
#pragma once

#include "core/parameters.h"
#include "core/safetensors.h"

namespace rg {

/// Returns a copy in host memory. If the tensor has four extents, the last one, the channels, moves to the second
/// place. This gives filters and images the layout of PyTorch. Other tensors keep their shape. Takes f32 only.
Tensor channels_first(const Tensor& channels_last);

/// Returns copies of all values of the network in host memory, with PyTorch's names and layouts.
std::vector<NamedTensor> state_dict(const Parameters& parameters);

/// Throws Error if a tensor of the network is missing in the file, or has another type or shape there. But
/// num_batches_tracked may be missing, as in files of PyTorch before 0.4.1; load_state_dict() takes 0. Also throws
/// Error if the file has further tensors, values that are not finite, or negative variances. Does not check tensors of
/// the layers `skip` (--init-skip): "bn1" skips all tensors of bn1, "bn1.running_mean" only this tensor. Throws Error
/// if neither the network nor the file has such a layer. Reads no value of the network, so the network may be made in a
/// DryRun, without memory.
void check_state_dict(const Parameters& parameters, const TensorFile& file, const std::vector<std::string>& skip = {});

/// Copies the values in the file to the network, except the tensors that check_state_dict() skips. If that function
/// throws Error, throws the same Error and changes nothing.
void load_state_dict(Parameters& parameters, const TensorFile& file, const std::vector<std::string>& skip = {});

} // namespace rg
