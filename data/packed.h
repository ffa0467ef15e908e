// Packed sets: the images of a source in one file, decoded and resized. All processes of a node map it, so they share
// its memory, the system drops what does not fit, and a later start decodes nothing.
//
// packed_file.h describes the file. Its checksums find damage: a set that is damaged is made anew, or is an error that
// names it.
#pragma once

#include "data/dataset.h"

#include <functional>
#include <map>
#include <optional>
#include <sys/types.h>

namespace rg::data {

class CacheLock;
class PixelSink;

/// The images of a source before some are held out for testing. `kind` and `note` describe them (see with_source()).
struct SourceImages {
    TrainTest sets;
    std::string kind, note;
    std::string packed_from = {}; // for a packed set, the path that was packed
};

/// Returns the contents of a packed set. Throws Error like PackedFile(), and if the parts of the set do not fit
/// together.
SourceImages read_packed(const std::string& path);

/// Returns the path of the packed set in the cache for a folder, with the channels, the size and the other choices of
/// the options. `shown` is the path that the user gave. `parts` lists the files and folders below `folder` that the set
/// depends on. If the cache has no set of these parts, unchanged (identity_of()), by this version of the decoders,
/// calls `read`, and packs the images that it gives to the sink. Removes older sets of the same folder and choices that
/// this node has made; other nodes may still read theirs. Prints its progress to standard error. Keep `lock` until all
/// processes of the node have opened the set; that of a temporary copy (source.h) is deleted with it. Throws Error if
/// the disk is full, if files change while they are read, and if `read` does. Call make_cache() before (cache.h).
std::string find_or_pack(const std::string& folder, const std::string& shown, const LoadOptions& options,
                         std::shared_ptr<CacheLock>& lock, const std::function<std::vector<std::string>()>& parts,
                         const std::function<SourceImages(PixelSink& sink)>& read);

/// The ID of each file system, by st_dev. One without stable inodes has none.
using FileSystemIds = std::map<dev_t, std::optional<uint64_t>>;

/// Returns a text that differs after each change of the file: its file system, inode, size, and both times of changes
/// in nanoseconds. Without stable inodes, the checksum of four pieces of the file, 4 KiB each, is in the place of the
/// inode; for a table (.csv), the checksum of all bytes. For a folder, returns only that it is one: its times also
/// change with files that are not part of the set. Adds its file system to `known`. Throws Error if there is no such
/// file.
std::string identity_of(const std::string& path, FileSystemIds& known);

} // namespace rg::data
