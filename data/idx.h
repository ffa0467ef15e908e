// Reads IDX files, the format of MNIST: a type, extents, and big-endian values. The file may be gzipped.
//
// Source: LeCun, Cortes and Burges, "The MNIST database of handwritten digits", 1998, last section.
#pragma once

#include "ringgrad/core/tensor.h"
#include "ringgrad/data/bytes.h"
#include "ringgrad/data/dataset.h"

namespace rg::data {

/// Largest size of an IDX file, also after unpacking a .gz. Larger ones are refused. Reading needs at most 4 times this
/// memory in addition to the file itself, because i8 becomes i32, and 2 times this while unpacking.
constexpr size_t kMaxIdxBytes = size_t{1} << 30;

/// Returns true if the bytes begin like an IDX file.
bool is_idx(Bytes bytes);

/// Returns the values as a tensor of rank 1 to 4. u8, i32, f32 and f64 keep their type; i8 and i16 become i32. Unpacks
/// gzipped bytes first. Throws Error with the offset if the bytes are not IDX, or type, rank, extents or size are
/// wrong.
Tensor parse_idx(Bytes bytes, const std::string& name);

/// For a folder with the four files of MNIST: train-images-idx3-ubyte, train-labels-idx1-ubyte, and the same with t10k.
/// Files with other names are found if these contain the same words ("test" may replace t10k). Each name may end in
/// .gz. has_idx() returns true if the folder has at least one of the four files. read_idx_sets() throws Error if one of
/// them is missing, or if several files match one.
bool has_idx(const std::string& folder);
TrainTest read_idx_sets(const std::string& folder);

} // namespace rg::data
