// See cache.h.
#include "data/cache.h"

#include "core/clock.h"
#include "core/stop.h"
#include "core/text.h"
#include "core/user_cache.h"
#include "data/command.h"
#include "data/dataset.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <iostream>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace rg::data {

namespace fs = std::filesystem;

constexpr double kProgress_s = 10;
constexpr double kPatience_s = 3; // after this time, a process says for which other one it waits

std::string cache_folder(const std::string& cache) {
    const std::string folder = cache.empty() || cache == kNoCache ? user_cache() : cache;
    RG_CHECK(!folder.empty(), "cache: expected $HOME or $XDG_CACHE_HOME, got neither; give --cache");
    return folder;
}

void make_cache(const std::string& folder) {
    std::error_code error;
    fs::create_directories((fs::absolute(folder) / "").parent_path().parent_path(), error);
    const int reason = error ? error.value() : ::mkdir(folder.c_str(), 0700) == 0 ? 0 : errno;
    RG_CHECK(reason == 0 || fs::is_directory(folder, error), "cache: cannot make the folder ", folder, ": ",
             std::strerror(reason), "; choose another --cache");
    struct stat info;
    RG_CHECK(::stat(folder.c_str(), &info) == 0, "cache: cannot read ", folder, ": ", std::strerror(errno));
    RG_CHECK(info.st_uid == ::geteuid(), "cache: expected a folder of your own, got ", folder,
             ", which is another user's; choose another --cache");
    RG_CHECK(!(info.st_mode & (S_IWGRP | S_IWOTH)), "cache: expected a folder that only its user can write into, got ",
             folder, ", which others can write into; run chmod go-w ", shell_word(folder),
             " or choose another --cache");
    RG_CHECK(::access(folder.c_str(), W_OK) == 0, "cache: cannot write into ", folder, ": ", std::strerror(errno),
             "; choose another --cache");
    clean_cache(folder);
    const std::string probe = cat(folder, "/.probe", ::getpid());
    const Descriptor file(::open(probe.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    RG_CHECK(file.get() >= 0 && ::unlink(probe.c_str()) == 0 && try_lock(file.get(), LOCK_SH) != Locked::unsupported,
             "cache: cannot lock files in ", folder, ": ", std::strerror(errno), "; choose another --cache");
}

void clean_cache(const std::string& folder) {
    std::error_code error; // other processes change the folder at the same time
    std::vector<fs::path> all;
    for (fs::directory_iterator entry(folder, error), end; entry != end; entry.increment(error))
        all.push_back(entry->path());
    for (const fs::path& lock : all) {
        const std::string checksum = lock.stem();
        if (lock.extension() != ".lock" || checksum.size() != 16 || checksum.find_first_not_of("0123456789abcdef") + 1)
            continue;
        const Descriptor file(::open(lock.c_str(), O_RDWR | O_CLOEXEC));
        if (try_lock(file.get(), LOCK_EX) != Locked::yes || !is_at(file.get(), lock)) continue;
        for (const fs::path& path : all)
            if (path != lock && path.filename().string().starts_with(checksum + ".")) fs::remove_all(path, error);
        fs::remove(lock, error);
    }
}

Locked try_lock(int file, int operation) {
    if (::flock(file, operation | LOCK_NB) == 0) return Locked::yes;
    return errno == EWOULDBLOCK || errno == EINTR ? Locked::no : Locked::unsupported;
}

bool is_at(int file, const std::string& path) {
    struct stat mine;
    struct stat there;
    return ::fstat(file, &mine) == 0 && ::stat(path.c_str(), &there) == 0 && mine.st_dev == there.st_dev &&
           mine.st_ino == there.st_ino;
}

std::string node_name() {
    char name[256] = {};
    ::gethostname(name, sizeof name - 1);
    return name;
}

CacheLock::CacheLock(const std::string& path, const std::function<bool()>& is_ready)
    : folder_(fs::path(path).parent_path()) {
    const std::string lock = path + ".lock";
    for (double next = seconds_now() + kPatience_s;; std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
        check_stop();
        // Opens the file each time, since the last process that held the lock may have removed the file. Closing the
        // old one also unlocks it. Otherwise, two processes with a shared lock could wait for each other.
        file_ = Descriptor(::open(lock.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
        const Locked shared = try_lock(file_.get(), LOCK_SH);
        RG_CHECK(shared != Locked::unsupported, "cache: cannot open and lock ", lock, ": ", std::strerror(errno));
        exclusive_ = shared == Locked::yes && !is_ready();
        const bool locked = exclusive_ ? try_lock(file_.get(), LOCK_EX) == Locked::yes : shared == Locked::yes;
        if (locked && is_at(file_.get(), lock)) break;
        if (seconds_now() < next) continue;
        next += 20 * kPatience_s;
        char holder[300] = {};
        (void)::pread(file_.get(), holder, sizeof holder - 1, 0);
        ProgressLines(cat("waiting for ", holder, ", which makes or reads ", path, "; if it hangs, end it"));
    }
    const std::string self = cat("process ", ::getpid(), " on ", node_name());
    (void)(::pwrite(file_.get(), self.data(), self.size(), 0) > 0 && ::ftruncate(file_.get(), off_t(self.size())) == 0);
}

CacheLock::~CacheLock() {
    file_ = Descriptor();
    clean_cache(folder_);
}

ProgressLines::ProgressLines(const std::string& text) : next_(seconds_now() + kProgress_s) {
    std::cerr << printable(text) << "\n";
}

void ProgressLines::update(const std::function<std::string()>& text) {
    if (seconds_now() < next_) return;
    next_ += kProgress_s;
    std::cerr << printable(text()) << "\n";
}

} // namespace rg::data
