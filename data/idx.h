// IDX files, the format of MNIST: a type, extents, and big-endian values; plain or gzipped.
//
// Source: LeCun, Cortes and Burges, "The MNIST database of handwritten digits", 1998, last section.
#pragma once

#include "core/tensor.h"
#include "data/bytes.h"
#include "data/dataset.h"

namespace rg::data {

/// Larger contents are refused; bounds what a .gz may unpack to. Reading takes at most 4 x that beside the contents,
/// since i8 become i32, and 2 x that while unpacking.
constexpr size_t kMaxIdxBytes = size_t{1} << 30;

/// Whether the bytes begin like an IDX file or like a gzipped file.
bool is_idx(Bytes bytes);
bool is_gzip(Bytes bytes);

/// The values as a tensor of rank 1 to 4. u8, i32, f32 and f64 keep their type, i8 and i16 become i32. Gzipped bytes
/// are unpacked first. Errors, with the offset: not IDX, an unknown type, rank or extents, too few or too many bytes.
Tensor parse_idx(Bytes bytes, const std::string& name);
Tensor read_idx(const std::string& path);

/// Images u8 [n h w] and labels u8 [n] as one set; the classes are "0" to the largest label, at least "9". Errors:
/// other types or ranks, different counts.
ImageSet read_idx_set(const std::string& images_path, const std::string& labels_path);

/// A folder with train-images-idx3-ubyte, train-labels-idx1-ubyte and the same of t10k, or with names that have these
/// words in them, test for t10k, each with .gz or without. Errors: one is missing, or there are two.
bool has_idx(const std::string& folder);
TrainTest read_idx_sets(const std::string& folder);

} // namespace rg::data
