// See cache.h.
#include "ringgrad/data/cache.h"

#include "ringgrad/core/clock.h"
#include "ringgrad/core/stop.h"
#include "ringgrad/core/text.h"
#include "ringgrad/core/user_cache.h"
#include "ringgrad/data/command.h"
#include "ringgrad/data/dataset.h"

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <iostream>
#include <sys/file.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace rg::data {

namespace fs = std::filesystem;

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
}

CacheLock::CacheLock(const std::string& path, const std::function<bool()>& is_ready)
    : file_(::open((path + ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600)) {
    RG_CHECK(file_.get() >= 0, "cache: cannot open ", path, ".lock: ", std::strerror(errno));
    for (;; std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
        check_stop();
        if (::flock(file_.get(), LOCK_SH | LOCK_NB) != 0) continue;
        if (is_ready()) return;
        if (::flock(file_.get(), LOCK_EX | LOCK_NB) == 0) break;
        ::flock(file_.get(), LOCK_UN); // or two processes could wait for each other
    }
    alone_ = true;
}

CacheLock::~CacheLock() {
    std::error_code ignored;
    if (temporary() && ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0) fs::remove_all(temporary_, ignored);
}

void CacheLock::share(const std::string& temporary) {
    ::flock(file_.get(), LOCK_SH);
    temporary_ = temporary;
}

Progress::Progress(const std::string& text) : next_(seconds_now() + kProgress_s) { print(text); }

void Progress::print(const std::string& text) { std::cerr << printable(text) << "\n"; }

bool Progress::due() {
    if (seconds_now() < next_) return false;
    next_ += kProgress_s;
    return true;
}

} // namespace rg::data
