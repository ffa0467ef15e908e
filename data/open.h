// load(): reads images from any kind of source. Only open.cpp depends on all readers, so a program that makes its own
// images links none of them.
#pragma once

#include "ringgrad/data/dataset.h"

namespace rg::data {

/// Reads the data at `path`: the embedded sample if it is empty, else a folder, s3://bucket/prefix or pipe:COMMAND
/// (data/shards.h). A folder holds CIFAR-10 or CIFAR-100 binary files (or cifar-10-batches-bin with them), IDX files as
/// in MNIST, or class folders of PNGs. Class folders may be in train/ and test/ (or val/ or validation/ instead of
/// test/). Throws Error if the folder holds none of these, if it has only one of train/ and test/, or if a reader
/// throws.
TrainTest load(const std::string& path, const LoadOptions& options = {});

} // namespace rg::data
