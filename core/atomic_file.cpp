// Uses POSIX calls: the standard library has no fsync and does not say why a write failed.
//
// Messages contain the path and the system's text ("No space left on device", "Permission denied"), since both help a
// user to solve the problem. Opening, reading and writing are repeated if a signal interrupts them (EINTR).
#include "core/atomic_file.h"
#include "core/descriptor.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <new>
#include <random>
#include <sys/stat.h>
#include <vector>

namespace rg {
namespace {

int open_retrying(const char* path, int flags, mode_t mode = 0666) {
    int fd;
    do fd = ::open(path, flags | O_CLOEXEC, mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/// Syncs the folder of `path`, which makes a rename in that folder durable. Returns true on success, and also if the
/// file system cannot sync folders (EINVAL).
bool sync_folder_of(const std::string& path) {
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    Descriptor fd(open_retrying(folder.c_str(), O_RDONLY | O_DIRECTORY));
    return fd.get() >= 0 && (::fsync(fd.get()) == 0 || errno == EINVAL);
}

} // namespace

bool write_all(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t n = ::write(fd, bytes.data(), bytes.size());
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        bytes.remove_prefix(size_t(n));
    }
    return true;
}

std::string read_file(const std::string& path, uint64_t max_bytes) {
    Descriptor fd(open_retrying(path.c_str(), O_RDONLY | O_NONBLOCK)); // with O_NONBLOCK, opening a FIFO does not block
    RG_CHECK(fd.get() >= 0, "read ", path, ": ", std::strerror(errno), errno == ENOENT ? "; check the path" : "");
    struct stat info;
    RG_CHECK(::fstat(fd.get(), &info) == 0, "read ", path, ": ", std::strerror(errno));
    RG_CHECK(S_ISREG(info.st_mode), "read ", path, ": expected a regular file, got ",
             S_ISDIR(info.st_mode) ? "a folder" : "a device or pipe");
    RG_CHECK(uint64_t(info.st_size) <= max_bytes, "read ", path, ": expected at most ", max_bytes, " bytes, got ",
             info.st_size, "; is this the right file?");
    std::string bytes;
    try {
        bytes.resize(size_t(info.st_size));
    } catch (const std::bad_alloc&) {
        fail("read ", path, ": expected memory for its ", info.st_size, " bytes, got none; is this the right file?");
    }
    size_t bytes_read = 0;
    while (bytes_read < bytes.size()) {
        const ssize_t n = ::read(fd.get(), bytes.data() + bytes_read, bytes.size() - bytes_read);
        if (n < 0 && errno == EINTR) continue;
        RG_CHECK(n >= 0, "read ", path, ": ", std::strerror(errno), " at offset ", bytes_read);
        RG_CHECK(n > 0, "read ", path, ": expected ", bytes.size(), " bytes, got ", bytes_read, "; the file shrank");
        bytes_read += size_t(n);
    }
    return bytes;
}

void write_file_atomic(const std::string& path, std::string_view bytes, Readers readers) {
    // Use random numbers and not the process id: processes on two machines that share a network folder can have the
    // same id.
    std::random_device random;
    const std::string temp = cat(path, kTempMark, random(), "-", random());
    mode_t mode = readers == Readers::owner ? 0600 : 0666;
    struct stat old;
    const bool keeps_mode = readers == Readers::umask && ::lstat(path.c_str(), &old) == 0 && S_ISREG(old.st_mode);
    if (keeps_mode) mode = old.st_mode & 0777;
    Descriptor fd(open_retrying(temp.c_str(), O_WRONLY | O_CREAT | O_EXCL, mode));
    RG_CHECK(fd.get() >= 0, "write ", path, ": cannot create ", temp, ": ", std::strerror(errno));
    if (keeps_mode) (void)::fchmod(fd.get(), mode); // restores permissions that the umask removed; harmless if it fails
    const char* stage = nullptr;
    if (!write_all(fd.get(), bytes))
        stage = "cannot write all bytes";
    else if (::fsync(fd.get()) != 0)
        stage = "cannot sync";
    else if (::close(fd.release()) != 0)
        stage = "cannot close";
    else if (::rename(temp.c_str(), path.c_str()) != 0)
        stage = "cannot rename the temporary file";
    if (stage) {
        const int reason = errno;
        ::unlink(temp.c_str());
        fail("write ", path, ": ", stage, " (", bytes.size(), " bytes): ", std::strerror(reason),
             "; the old file is untouched");
    }
    RG_CHECK(sync_folder_of(path), "write ", path, ": cannot sync its folder: ", std::strerror(errno));
}

void write_output(const std::string& path, std::string_view bytes) {
    namespace fs = std::filesystem;
    std::error_code none;
    const std::string target = fs::canonical(path, none); // empty if there is no such file
    RG_CHECK(target.empty() || fs::is_regular_file(target, none), "write ", path,
             ": expected a file, got a folder, pipe or device; choose another name");
    write_file_atomic(target.empty() ? path : target, bytes);
}

void remove_leftovers(const std::string& path) {
    namespace fs = std::filesystem;
    const std::string start = cat(fs::path(path).filename().string(), kTempMark);
    std::vector<fs::path> leftovers;
    std::error_code ignored;
    const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : ".";
    for (fs::directory_iterator at(folder, ignored), end; !ignored && at != end; at.increment(ignored))
        if (at->path().filename().string().starts_with(start)) leftovers.push_back(at->path());
    for (const fs::path& leftover : leftovers) fs::remove(leftover, ignored); // harmless if it fails
}

} // namespace rg
