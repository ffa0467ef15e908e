// Reads state dicts from the files of PyTorch's torch.save(), without PyTorch.
//
// Reads both formats: the zip file of PyTorch 1.6 and later, and the older stream, in which many published weights
// still are. In both, a pickle describes the tensors: instructions for a machine that normally may call any Python
// function. This reader executes nothing. It knows the few instructions (of protocol 2) and names that state dicts
// consist of, and refuses a file with another name, such as that of a module's class, by that name.
//
// The file has a state dict, or a dict of a training with exactly one state dict in it, under any key. The names of
// DataParallel lose their "module." if all names begin with it, as the network itself has no such names. F16 and BF16
// become f32, and BOOL becomes u8. Tensors may be views of shared storages; each becomes a contiguous copy. All numbers
// are checked against the file's size before a tensor is allocated. Together the tensors have at most 4 times as many
// bytes as the file: enough for F16 under two names. Besides the file and the tensors, the reader needs at most 200
// bytes of memory per byte of the pickle. Zip files have checksums (CRC-32), but PyTorch may omit them, so that the
// reader ignores them. It refuses zip files of 4 GiB or more.
#pragma once

#include "core/safetensors.h"

namespace rg {

/// Returns true if the file begins like one of torch.save(), or like any zip file.
bool is_torch_file(std::string_view bytes);
/// Decodes the contents of a file into tensors in host memory, in the order of the state dict, without metadata. Throws
/// Error if the file is damaged, has anything but a state dict, or has tensors of another type than F32, F16, BF16,
/// F64, U8, BOOL, I32 and I64, or with more than four extents. The message names `source`.
TensorFile decode_torch_file(std::string_view bytes, const std::string& source);

} // namespace rg
