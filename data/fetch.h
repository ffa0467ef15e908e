// What a URL holds, by way of a command that writes it: tried again when it fails, and kept in a folder if there is
// one.
//
// The cache is a folder of files, one per URL, each with a first line that says how many bytes follow and their CRC-32.
// A URL may hold a token, or be a command with one: files are named by its SHA-256, nothing in them tells it, and a
// folder that is made for them, and the files, are for this user alone; a folder of another user, or that others can
// write into, is refused. A file that cannot be read, or does not hold
// what it says, is fetched anew; one that does is used without asking the network, so it is for data that do not
// change. Ranks and jobs may share the folder: files appear whole. A file that cannot be written is a warning.
#pragma once

#include "data/bytes.h"
#include "data/pipe.h"

#include <functional>

namespace rg::data {

struct FetchOptions {
    std::string cache;           // folder; none: nothing is kept
    int64_t retries = 4;         // after the first attempt
    double first_wait_s = 0.5;   // before the first of them; doubled for each one after
    double silence_s = 300;      // a command that neither writes nor ends for so long has failed
    int64_t unpacked_mib = 1024; // a gzipped shard that is longer when it is unpacked is refused
    double list_s = 600;         // a list of objects that takes so long has no end
};

/// A shard larger than this, as it comes, is refused: shards are held in memory, one at a time.
constexpr size_t kMaxShard = size_t{1} << 32;

/// The bytes of `url` from the cache, else from the command. `check` throws unless they are whole, and may unpack
/// them; what it leaves is returned and cached. Errors, after all attempts (a program that is not there, or a server
/// that has refused, is not tried again): the URL, how many, and what the last one said. All attempts together have
/// `total_s` seconds.
std::string fetch(const std::string& url, const std::string& command, const std::function<void(std::string&)>& check,
                  const FetchOptions& options, double total_s = kNoTimeLimit);

} // namespace rg::data
