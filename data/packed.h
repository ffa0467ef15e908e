// Packed sets: the images of a source in one file, decoded and resized. All processes of a node map it, so they share
// its memory, the system drops what does not fit, and a later start decodes nothing.
//
// packed_file.h describes the file. Its checksums find damage: a set that is damaged is made anew,
// or is an error that names it.
#pragma once

#include "ringgrad/data/dataset.h"

#include <functional>

namespace rg::data {

class CacheLock;
class PixelSink;

/// The images of a source before some are held out for testing. `kind` and `note` describe them (see described()).
struct Contents {
    TrainTest sets;
    std::string kind, note;
    std::string path = {}; // of a packed set: where its files were
};

/// Returns the contents of a packed set. Throws Error like PackedFile().
Contents read_packed(const std::string& path);

/// Returns the path of the packed set in the cache for the files below `folder`, with the channels, the size and the
/// other choices of the options. `shown` is the path that the user gave. If there is none, or if the names, sizes or
/// times of the files have changed since, calls `read` and makes one with the images that it gives to the sink. Removes
/// older sets of the same folder, and what killed processes left of them. Prints its progress to standard error. Keep
/// `lock` until all processes of the node have opened the set; a temporary set is deleted with it. Throws Error if the
/// disk is full, if files change while they are read, and if `read` does. Call make_cache() before (cache.h).
std::string pack(const std::string& folder, const std::string& shown, const LoadOptions& options, bool temporary,
                 std::shared_ptr<CacheLock>& lock, const std::function<Contents(PixelSink& sink)>& read);

} // namespace rg::data
