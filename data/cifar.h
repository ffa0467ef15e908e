// Reads the binary versions of CIFAR-10 and CIFAR-100 (Krizhevsky, "Learning multiple layers of features from tiny
// images", 2009).
//
// A record of CIFAR-10 has one label byte, and then 3072 bytes of pixels, one plane per colour. A record of CIFAR-100
// has two label bytes: the coarse label, and then the fine label, which the reader uses. The reader interleaves the
// planes, because all other code here stores images as [height width channels].
#pragma once

#include "data/bytes.h"
#include "data/dataset.h"

namespace rg::data {

enum class CifarKind : uint8_t { cifar10, cifar100 };

/// Returns the names of the ten classes of CIFAR-10, or "class 0" to "class 99" for CIFAR-100.
std::vector<std::string> class_names(CifarKind kind);

struct CifarFile {
    Bytes bytes;
    std::string name; // for error texts
};
/// Returns all records of the files, one after another. Allocates about as much memory as the files have bytes. Throws
/// Error with the offset if a file is empty, a record is incomplete, or a label is out of range.
ImageSet parse_cifar(const std::vector<CifarFile>& files, CifarKind kind);

/// Returns the kind whose record size divides the number of bytes; CIFAR-10 if both do. Throws Error otherwise, also
/// if there are no bytes.
CifarKind cifar_kind(Bytes bytes, const std::string& name);

/// Returns true if the folder has one of the files data_batch_1.bin to data_batch_5.bin and test_batch.bin, or
/// train.bin and test.bin. Both kinds of folders may hold records of CIFAR-10 or of CIFAR-100.
bool has_cifar(const std::string& folder);
/// Returns the paths of all files that read_cifar() reads. Throws Error if a file of images is missing.
std::vector<std::string> cifar_input_files(const std::string& folder);

/// Reads a folder. Takes class names from its file batches.meta.txt (CIFAR-10) or fine_label_names.txt (CIFAR-100),
/// or else from class_names(). Throws Error if a file of images is missing or invalid, or if the numbers of names and
/// classes differ.
TrainTest read_cifar(const std::string& folder);

} // namespace rg::data
