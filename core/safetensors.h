// Named tensors in a file, in the safetensors format, so that other frameworks read ours and we read theirs.
//
// A file is: 8 bytes of header length (little-endian), a JSON header padded with spaces, then the data. The header
// maps each name to dtype, shape and data_offsets relative to the data, and "__metadata__" to a map of strings. The
// offsets must cover the data with no hole and no overlap. Reading checks all of that against the real file size
// before a tensor is allocated; beside the data it takes at most 100 bytes of memory per byte of the header. Dtypes are
// the six of Tensor; others (F16, BOOL, ...) are an error that names them.
#pragma once

#include "core/tensor.h"

#include <string_view>

namespace rg {

struct NamedTensor {
    std::string name;
    Tensor value;
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

/// What such a file holds, in the order of its header.
struct TensorFile {
    std::vector<NamedTensor> tensors;
    Metadata metadata;
    std::string source; // the file it came from: named in the errors below

    /// The tensor of that name, or null.
    const Tensor* find(std::string_view name) const;
    /// The tensor of that name. Error when absent, or when type or shape differ.
    const Tensor& tensor(std::string_view name, DType type, const Shape& shape) const;
    /// The metadata text of that key, or null.
    const std::string* find_text(std::string_view key) const;
    /// The metadata text of that key. Error when absent; number() also when it is no integer.
    const std::string& text(std::string_view key) const;
    int64_t number(std::string_view key) const;
};

/// The largest file that is read.
inline constexpr uint64_t kMaxTensorFile = uint64_t{1} << 36;
/// The largest header that is read or written; the format's own limit.
inline constexpr int64_t kMaxTensorHeader = 100'000'000;

/// The file as bytes. Data are laid out by falling element size, so that each tensor is aligned. Error: a name that is
/// empty, used twice or "__metadata__"; an undefined tensor.
std::string encode_tensors(const std::vector<NamedTensor>& tensors, const Metadata& metadata);
/// The inverse; `source` is for messages. Error: each violation of the format has its own text, with the tensor.
TensorFile decode_tensors(std::string_view bytes, const std::string& source);

/// encode_tensors() into a file, atomically and durably (see core/atomic_file.h).
void save_tensors(const std::string& path, const std::vector<NamedTensor>& tensors, const Metadata& metadata = {});
TensorFile load_tensors(const std::string& path);

} // namespace rg
