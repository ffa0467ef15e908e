// The cache: a folder for copies of remote data (source.h) and for packed sets (packed.h).
//
// Its files are readable only by this user. A cache that belongs to another user, or that others can write into, is
// refused: they could put false data into it. Jobs may share it: they wait while another one makes what they need, or
// reads what they would change.
//
// A lock is CHECKSUM.lock. Whatever else is named CHECKSUM.* lives only as long as a process holds it: archives, parts
// of files, and temporary copies. So the next start knows what a killed process has left.
#pragma once

#include "core/base.h"
#include "core/descriptor.h"

#include <functional>
#include <sys/file.h>

namespace rg::data {

/// Returns the folder that LoadOptions::cache names, by default user_cache(). Throws Error if there is none.
std::string cache_folder(const std::string& cache);

/// Creates the folder, readable by this user only, and its missing parents. Calls clean_cache(). Throws Error if
/// it cannot be made, its file system has no locks, it belongs to another user, or others can write into it.
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
    /// Takes the lock PATH.lock: shared, if `is_ready()` returns true under it; otherwise alone. Then alone() is true,
    /// and the caller must make the file and call share(). After some seconds, prints which process it waits for. Call
    /// make_cache() before. Throws Stopped after a stop request.
    CacheLock(const std::string& path, const std::function<bool()>& is_ready);
    ~CacheLock();
    CacheLock(const CacheLock&) = delete;
    CacheLock& operator=(const CacheLock&) = delete;

    bool alone() const { return alone_; }
    /// Lets other processes read, too. For a moment nobody holds the lock, so PATH.* may be removed.
    void share() const { (void)try_lock(file_.get(), LOCK_SH); }

private:
    const std::string folder_;
    Descriptor file_;
    bool alone_ = false;
};

/// Prints a line to standard error when some work begins, and then every 10 seconds.
class Progress {
public:
    explicit Progress(const std::string& text);
    void update(const std::function<std::string()>& text);

private:
    double next_;
};

} // namespace rg::data
