// CIFAR-10 and CIFAR-100 in their binary versions (Krizhevsky, "Learning multiple layers of features", 2009).
//
// A record is one label byte (CIFAR-100: coarse, then fine, of which the fine one is used) and 3072 bytes of pixels,
// one plane per colour. The planes are interleaved on reading: everything else here is N H W C.
#pragma once

#include "data/bytes.h"
#include "data/dataset.h"

namespace rg::data {

enum class CifarKind : uint8_t { cifar10, cifar100 };

/// All records of one file's bytes, in less memory than twice as much. Errors, with the offset: empty, a partial
/// record, a label out of range.
ImageSet parse_cifar(Bytes bytes, CifarKind kind, const std::string& name);
ImageSet read_cifar_file(const std::string& path, CifarKind kind);

/// The kind that the size says. Errors: no multiple of either record.
CifarKind cifar_kind(Bytes bytes, const std::string& name);

/// The lines of batches.meta.txt or fine_label_names.txt that are not empty.
std::vector<std::string> parse_class_names(std::string_view text);

/// What a folder seems to hold: data_batch_1.bin to _5 and test_batch.bin, or a pair train.bin and test.bin (of either
/// kind: CIFAR-100, or a selection such as our sample). One of the files is enough to seem so.
enum class CifarFolder : uint8_t { none, cifar10, pair };
CifarFolder find_cifar(const std::string& folder);

/// Reads a folder, with class names from batches.meta.txt or fine_label_names.txt if there. Errors: as for a file; a
/// file is missing; not as many names as classes.
TrainTest read_cifar(const std::string& folder);

} // namespace rg::data
