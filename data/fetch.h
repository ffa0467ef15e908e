// Fetches the data of a URL by running a command that writes them. Retries failed commands, and can cache the data in a
// folder.
//
// The cache has one file per URL. The file's first line gives the number of bytes that follow and their CRC-32. A URL,
// or a command in its place, may contain a secret. So the file's name is the SHA-256 of the URL, and the file does not
// contain the URL. New files, and a new cache folder, are readable only by this user. A cache folder that belongs to
// another user, or that others can write into, is refused. If a file is unreadable or damaged, its data are fetched
// again. A good file is used without asking the server, so the cache is for data that do not change. Ranks and jobs may
// share the folder, because a file appears only when it is complete. A file that cannot be written causes a warning.
#pragma once

#include "ringgrad/data/bytes.h"
#include "ringgrad/data/pipe.h"

#include <functional>

namespace rg::data {

struct FetchOptions {
    std::string cache;           // folder; empty: no cache
    int64_t retries = 4;         // attempts after the first one
    double first_wait_s = 0.5;   // wait before the first retry; doubles with each retry
    double silence_s = 300;      // longest time that a command may write nothing
    int64_t unpacked_mib = 1024; // limit for the unpacked size of a gzipped shard
    double list_s = 600;         // longest time to list an S3 prefix, with retries (list_s3() in s3.h)
};

/// Largest shard (shards.h), in bytes as it is transferred. Larger ones are refused, because a shard is held in memory.
constexpr size_t kMaxShard = size_t{1} << 32;

/// Returns the bytes of `url` from the cache, or else from the command. Calls `check` with the command's bytes, but not
/// with cached ones. `check` must throw Error unless the bytes are complete. It may replace them, for example by
/// unpacked ones; fetch() returns and caches these. All attempts together may take `total_s` seconds. A missing program
/// and a server's refusal are not retried. After the last attempt, throws Error with the URL, the number of attempts
/// and the last error. Throws Stopped after a stop request.
std::string fetch(const std::string& url, const std::string& command, const std::function<void(std::string&)>& check,
                  const FetchOptions& options, double total_s = kNoTimeLimit);

} // namespace rg::data
