// Copies data from elsewhere into a local folder: s3://BUCKET/PREFIX with an installed client, and pipe:COMMAND, which
// prints a tar. So all readers read folders.
//
// The copies lie in the cache (cache.h). The name of a copy is a checksum of the source and the node, since a command
// may contain a secret.
#pragma once

#include "data/cache.h"

#include <memory>

namespace rg::data {

/// Returns true for s3:// and pipe:, false for local folders.
bool is_remote(const std::string& path);

/// Returns the folder in which copy_source() puts the data of a remote source, or the path itself if it is local. That
/// of a temporary copy ends in kTemporary. `cache`: see LoadOptions.
inline constexpr std::string_view kTemporary = ".copy";
std::string source_folder(const std::string& path, const std::string& cache);

/// Copies a remote source into source_folder(); does nothing if the path is local. Prints its progress to standard
/// error. Call it in one process per node, and keep the result until all processes of the node have read the copy: no
/// other process changes it until then.
///
/// A bucket is synchronised in each call by the first of aws, s5cmd and rclone that PATH has: new and changed objects
/// are copied, and files whose objects are gone are deleted. So a copy that was interrupted goes on where it ended.
/// The client finds credentials, region and profile by itself; S3_ENDPOINT names another server than Amazon's. It lists
/// the differences before it copies them, for the progress. The set has the objects that the client lists: aws takes a
/// list that the server cuts off without a token for a whole one.
///
/// A tar, plain or compressed with gzip, bzip2, xz or zstd, is unpacked. If `cache` names a folder, later calls take
/// the same copy without running the command, until the user deletes it; otherwise the copy is deleted with the result.
/// Several archives one after another are allowed. Links, devices, duplicates and names with .. are refused; absolute
/// names are taken below the folder.
///
/// Throws Error with the last line that the command or the client printed; for a tar also if it is cut off, or if its
/// command writes nothing for 300 s. Also throws Error when less than 1 GB or less than 1 % of the disk, the smaller of
/// the two, is left free: objects may be larger than listed, or endless. Throws Stopped after a stop request.
std::shared_ptr<CacheLock> copy_source(const std::string& path, const std::string& cache);

/// Returns the command that synchronises a bucket with a folder, or with `dry_run` prints one line per difference.
/// `client` is aws, s5cmd or rclone. For tests.
std::string sync_command(const std::string& client, const std::string& url, const std::string& folder,
                         bool dry_run = false);

} // namespace rg::data
