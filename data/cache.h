// The cache: a folder for copies of remote data (source.h) and for packed sets (packed.h).
//
// Its files are readable only by this user. A cache that belongs to another user, or that others can write into, is
// refused: they could put false data into it. Jobs may share it: they wait while another one makes what they need, or
// reads what they would change.
#pragma once

#include "ringgrad/core/base.h"
#include "ringgrad/core/descriptor.h"

#include <functional>

namespace rg::data {

/// Returns the folder that LoadOptions::cache names, by default user_cache(). Throws Error if there is none.
std::string cache_folder(const std::string& cache);

/// Creates the folder, readable by this user only, and its missing parents. Throws Error if that fails, or if it exists
/// and belongs to another user, or others can write into it.
void make_cache(const std::string& folder);

/// Holds the lock of a file or a folder in the cache: alone while it is made, and then together with others.
class CacheLock {
public:
    /// Takes the lock PATH.lock: shared, if `is_ready()` returns true under it; otherwise alone. Then alone() is true,
    /// and the caller must make the file and call share(). Throws Stopped after a stop request.
    CacheLock(const std::string& path, const std::function<bool()>& is_ready);
    ~CacheLock();
    CacheLock(const CacheLock&) = delete;
    CacheLock& operator=(const CacheLock&) = delete;

    bool alone() const { return alone_; }
    /// Lets other processes read, too. Deletes `temporary` in the end, unless it is empty or others still read.
    void share(const std::string& temporary = {});
    bool temporary() const { return !temporary_.empty(); }

private:
    const Descriptor file_;
    bool alone_ = false;
    std::string temporary_;
};

/// Prints a line to standard error when some work begins, and then every 10 seconds.
class Progress {
public:
    explicit Progress(const std::string& text);
    template <class Text>
    void update(const Text& text) {
        if (due()) print(text());
    }

private:
    static constexpr double kProgress_s = 10;
    static void print(const std::string& text);
    bool due();
    double next_;
};

} // namespace rg::data
