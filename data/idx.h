// Reads IDX files, the format of MNIST: a type, extents, and bytes. The file may be gzipped. Files of other types than
// bytes are refused.
//
// Source: LeCun, Cortes and Burges, "The MNIST database of handwritten digits", 1998, last section.
#pragma once

#include "core/tensor.h"
#include "data/bytes.h"
#include "data/dataset.h"

namespace rg::data {

/// Limit in bytes for the values in an IDX file, and for an unpacked file; larger ones are refused. Unpacking takes at
/// most twice this limit + 64 KiB.
constexpr size_t kMaxIdxBytes = size_t{1} << 30;

/// Returns true if the bytes begin like an IDX file that is not gzipped.
bool is_idx(Bytes bytes);

/// Returns the values as a tensor u8 of rank 1 to 4. Unpacks gzipped bytes first. Throws Error if the bytes are not
/// IDX, or type, rank, extents or size are wrong.
Tensor parse_idx(Bytes bytes, const std::string& name);

/// Find and read the four files of MNIST in a folder: train-images-idx3-ubyte, train-labels-idx1-ubyte, and two whose
/// names have t10k instead of train. If one of these is missing, a file with a similar name takes its place. The name
/// has "train", or else "t10k" or "test"; it has "images" and "idx3", or "labels" and "idx1"; and it ends in "ubyte".
/// Each name may have .gz added. has_idx() returns true if the folder has at least one of the four files.
/// read_idx_sets() throws Error if a file is missing or invalid, if several similar names fit one place, or if training
/// and test images differ in size.
bool has_idx(const std::string& folder);
std::vector<std::string> idx_input_files(const std::string& folder); // paths of the four files
TrainTest read_idx_sets(const std::string& folder);

} // namespace rg::data
