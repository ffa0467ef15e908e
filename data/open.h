// load(): reads images from any source. In this folder, only open.cpp depends on all readers, so a program that makes
// its own images need not link them.
#pragma once

#include "core/options.h"
#include "data/cache.h"
#include "data/dataset.h"

namespace rg::data {

/// Reads the data at `path`. An empty path is the embedded sample (sample.h). Otherwise it is a folder,
/// s3://BUCKET/PREFIX or pipe:COMMAND (source.h), or a packed set (packed.h). A folder holds CIFAR-10 or CIFAR-100
/// binary files, IDX files as in MNIST, or images in class folders, with or without sets such as train and test
/// (layout.h). Throws Error if it holds none of these, if there are only test images but the options ask to hold some
/// out, or if a reader throws.
TrainTest load(const std::string& path, const LoadOptions& options = {});

/// Declares --cache, --skip-other-images and --label-from, which all programs have that read folders of images.
void declare_reading(Options& options, LoadOptions& reading);

/// The two steps of load(), for processes of one node that load the same data. First, one of them calls open_source(),
/// which copies remote data and, unless LoadOptions::cache is kNoCache, makes a packed set on all cores. Then all of
/// them call load_source() with Source::path. Keep the result until they have returned.
struct Source {
    std::string path; // path of a folder or a packed set on this node; empty: the embedded sample
    std::vector<std::shared_ptr<CacheLock>> locks;
};
Source open_source(const std::string& path, const LoadOptions& options);
/// Reads the data at `path`, which is Source::path. `shown` is the path that the user gave, for descriptions and error
/// texts.
TrainTest load_source(const std::string& path, const LoadOptions& options, const std::string& shown);

} // namespace rg::data
