// load(): reads images from whatever a path names. This is the only file that knows every source, so that a program with
// images of its own links none of them.
#pragma once

#include "data/dataset.h"

namespace rg::data {

/// The data at `path`, whatever it is: the embedded sample if empty, else a folder of CIFAR-10 or CIFAR-100 binary
/// files (or the folder around cifar-10-batches-bin), of MNIST-style IDX files, or of PNG class folders, which may be
/// in train/ and in test/ (or val/, or validation/ if there is no test/); or s3://bucket/prefix or pipe:COMMAND
/// (data/shards.h). Errors: none of these, one of train/ and test/ alone, or what the reader says.
TrainTest load(const std::string& path, const LoadOptions& options = {});

} // namespace rg::data
