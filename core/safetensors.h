// Reads and writes named tensors in the safetensors format, to exchange files with other frameworks.
//
// A file consists of 8 bytes of header length (little-endian), a JSON header padded with spaces, and the data. The
// header maps each name to dtype, shape and data_offsets relative to the data, and "__metadata__" to a map of strings.
// The offsets must cover the data without holes or overlaps. The reader checks all of this against the file size before
// it allocates a tensor. Besides the file's contents and the tensors, the reader needs at most 100 bytes of memory per
// byte of the header. It accepts the six types of Tensor, and up to four extents. For another type (F16, BOOL, ...) it
// throws Error with the type's name.
//
// The writer adds two texts to the metadata: "tensor_checksums", a 64-bit checksum of each tensor's bytes, and
// "checksum", one of the header with its length, computed with '0' in place of its own 16 digits. So the reader detects
// damage to any byte (see checksum.h), and its error names the damaged part. Files of other programs have no checksums.
// A program that copies the metadata to a new file, such as Python's safetensors, spells the header without spaces. The
// reader then ignores the checksums, which belong to the old file.
#pragma once

#include "core/tensor.h"

#include <string_view>

namespace rg {

struct NamedTensor {
    std::string name;
    Tensor value;
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

/// Contents of a file, in the order of its header.
struct TensorFile {
    std::vector<NamedTensor> tensors;
    Metadata metadata;
    std::string source;         // the file name, for error messages
    bool has_checksums = false; // true if the file had checksums; they were right

    /// Returns the tensor of that name, or a null pointer if there is none.
    const Tensor* find(std::string_view name) const;
    /// Returns the tensor of that name. Throws Error if it is missing or has another type or shape.
    const Tensor& tensor(std::string_view name, DType type, const Shape& shape) const;
    /// Returns the metadata text of that key, or a null pointer if there is none.
    const std::string* find_text(std::string_view key) const;
    /// Returns the metadata text of that key. Throws Error if it is missing.
    const std::string& text(std::string_view key) const;
    /// Returns the metadata text of that key as a number. Throws Error if it is missing or not an integer.
    int64_t number(std::string_view key) const;
};

/// Largest file, in bytes, that load_tensors() and load_checkpoint() read.
inline constexpr uint64_t kMaxTensorFile = uint64_t{1} << 36;
/// Largest header, in bytes, that is read or written: enough for 80,000 tensors. The format allows 100 MB.
inline constexpr int64_t kMaxTensorHeader = 10'000'000;

/// Returns the contents of a file with these tensors, in host or device memory, and metadata. The data of tensors with
/// larger elements come first, so that in the file each tensor is aligned to its element size. Throws Error if a name
/// is empty, used twice or "__metadata__", if a metadata key is used twice, or is that of a checksum, if a text is not
/// valid UTF-8, if a tensor is undefined, or if the header is too long.
std::string encode_tensors(const std::vector<NamedTensor>& tensors, const Metadata& metadata);
/// Decodes the contents of a file into tensors in host memory, and the metadata without checksums. If the contents
/// violate the format, if a tensor has another type or more than four extents, or if a checksum shows damage, throws
/// Error. The message names `source` and, if a single tensor is wrong, that tensor.
TensorFile decode_tensors(std::string_view bytes, const std::string& source);

/// Writes encode_tensors() to a file, atomically and durably (see core/atomic_file.h).
void save_tensors(const std::string& path, const std::vector<NamedTensor>& tensors, const Metadata& metadata = {});
/// Reads a file. Throws Error like read_file() and decode_tensors().
TensorFile load_tensors(const std::string& path);

} // namespace rg
