// load(): reads images from any kind of source. In this folder, only open.cpp depends on all readers, so a program that
// makes its own images need not link them.
#pragma once

#include "ringgrad/data/dataset.h"

namespace rg::data {

/// Reads the data at `path`. An empty path is the embedded sample (sample.h). Otherwise it is a folder,
/// s3://bucket/prefix or pipe:COMMAND (shards.h). A folder holds CIFAR-10 or CIFAR-100 binary files (or a folder
/// cifar-10-batches-bin with them), IDX files as in MNIST, or class folders of PNGs. Class folders may be in train/ and
/// test/ (or val/ or validation/ instead of test/). Throws Error if the folder holds none of these, if all its class
/// folders are in only one of train/, test/, val/ and validation/, or if a reader throws.
TrainTest load(const std::string& path, const LoadOptions& options = {});

} // namespace rg::data
