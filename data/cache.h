// The cache: a folder for copies of remote data (source.h) and for packed sets (packed.h).
//
// A new cache is readable only by its user. A cache that belongs to another user, or that others can write into, is
// refused: they could put false data into it. Several jobs may share a cache. A job waits while another one makes a
// file that it needs, or reads one that it would change.
//
// A lock is a file CHECKSUM.lock. Other files CHECKSUM.* (archives, parts of files, temporary copies) are valid only
// while a process holds this lock. So the next start knows which files a killed process has left.
#pragma once

#include "core/base.h"
#include "core/descriptor.h"

#include <functional>
#include <sys/file.h>

namespace rg::data {

/// Returns the folder of the cache: `cache` (LoadOptions::cache), or user_cache() if that is empty or kNoCache. Throws
/// Error if user_cache() is empty.
std::string cache_folder(const std::string& cache);

/// Creates the folder, readable by this user only, and its missing parents. Calls clean_cache(). Throws Error if it
/// cannot be made or written into, its file system has no locks, it belongs to another user, or others can write into
/// it.
void make_cache(const std::string& folder);

/// Removes the locks that no process holds, and the files of killed processes.
void clean_cache(const std::string& folder);

/// The result of try_lock(). `unsupported`: the file system has no locks.
enum class Locked : uint8_t { yes, no, unsupported };
/// Tries to lock an open file with flock(). `operation` is LOCK_SH or LOCK_EX.
Locked try_lock(int file, int operation);
/// Returns true if the open file is the one at `path`.
bool is_at(int file, const std::string& path);

/// Returns the name of this machine.
std::string node_name();

/// Holds the lock of a file or a folder in the cache: alone while it is made, and then together with others.
class CacheLock {
public:
    /// Takes the lock PATH.lock: shared, if is_ready() returns true while the lock is held; otherwise alone. Then
    /// exclusive() is true, and the caller must make the file or folder, and call downgrade() if others may read it.
    /// After some seconds, prints for which process it waits. Call make_cache() before. Throws Error if the lock cannot
    /// be opened, and Stopped after a stop request.
    CacheLock(const std::string& path, const std::function<bool()>& is_ready);
    ~CacheLock();
    CacheLock(const CacheLock&) = delete;
    CacheLock& operator=(const CacheLock&) = delete;

    bool exclusive() const { return exclusive_; }
    /// Lets other processes read, too. For a moment nobody holds the lock, so PATH.* may be removed.
    void downgrade() const { (void)try_lock(file_.get(), LOCK_SH); }

private:
    const std::string folder_;
    Descriptor file_;
    bool exclusive_ = false;
};

/// Prints a line to standard error when some work begins; then update() prints one at most every 10 seconds.
class ProgressLines {
public:
    explicit ProgressLines(const std::string& text);
    void update(const std::function<std::string()>& text);

private:
    double next_;
};

} // namespace rg::data
