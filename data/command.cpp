// Uses posix_spawn instead of fork: the parent may be large, have threads, and hold MPI connections that the child must
// not inherit. The child gets only /dev/null as input and a pipe for each of its two outputs. Both outputs are read as
// they arrive, so that neither pipe can fill up and block the child.
#include "data/command.h"

#include "core/base.h"
#include "core/descriptor.h"
#include "core/stop.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rg::data {

namespace {

constexpr size_t kStepBytes = 1 << 16;  // bytes per read
constexpr size_t kErrorBytes = 4096;    // bytes of standard error that are kept for error texts
constexpr size_t kLineBytes = 300;      // most bytes of a text that excerpt() shows
constexpr size_t kMaxErrors = 64 << 20; // limit for standard error: progress bars write less
constexpr int kPollMs = 20;             // longest wait for output before checking for stop requests and the end
constexpr int kLowestOther = 3;         // the first descriptor after the standard ones

/// A pipe for one output of the child.
class OutputPipe {
public:
    OutputPipe() {
        int ends[2];
        RG_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "command: cannot open: ", std::strerror(errno));
        read_ = Descriptor(ends[0]), write_ = Descriptor(ends[1]);
        ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    }
    int write_end() const { return write_.get(); }
    pollfd for_poll() const { return {read_.get(), POLLIN, 0}; } // poll() ignores -1, a closed pipe
    bool open() const { return read_.get() >= 0; }
    size_t capacity() const { return size_t(std::max(::fcntl(read_.get(), F_GETPIPE_SZ), 0)); } // 0 if closed
    void close_write() { write_ = Descriptor(); }

    /// Appends the bytes that the pipe holds, but at most kStepBytes. Closes the pipe at its end or after an error.
    /// Returns false if nothing was read.
    bool read(std::string& to) {
        if (!open()) return false;
        const size_t before = to.size();
        to.resize(before + kStepBytes);
        ssize_t n;
        do n = ::read(read_.get(), to.data() + before, kStepBytes);
        while (n < 0 && errno == EINTR);
        to.resize(before + size_t(std::max<ssize_t>(n, 0)));
        if (n == 0 || (n < 0 && errno != EAGAIN)) read_ = Descriptor();
        return n > 0;
    }

private:
    Descriptor read_, write_;
};

/// Kills a process and its descendants. Stops it first, so that it cannot start new ones. A process group would be
/// simpler, but then ssh could not ask for a password at the terminal, and Ctrl-C would not reach the group.
void kill_tree(pid_t pid) {
    namespace fs = std::filesystem;
    ::kill(pid, SIGSTOP);
    std::error_code ignored; // any process may end at any time
    // Each thread has a list of the children that it has started.
    for (fs::directory_iterator thread(cat("/proc/", pid, "/task"), ignored), none; thread != none;
         thread.increment(ignored)) {
        std::ifstream children(thread->path() / "children");
        for (std::string child; std::getline(children, child, ' ');)
            if (pid_t number = 0; read_number(child, number)) kill_tree(number);
    }
    ::kill(pid, SIGKILL);
}

class ChildProcess {
public:
    ChildProcess(const std::string& command, OutputPipe& out, OutputPipe& err) {
        posix_spawn_file_actions_t files;
        posix_spawn_file_actions_init(&files);
        posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
        posix_spawn_file_actions_adddup2(&files, out.write_end(), 1);
        posix_spawn_file_actions_adddup2(&files, err.write_end(), 2);
        posix_spawn_file_actions_addclosefrom_np(&files, kLowestOther);
        // The child would inherit that this program ignores a signal. Then a write to a closed pipe, or beyond the
        // limit of file sizes, would not end the child.
        posix_spawnattr_t attributes;
        posix_spawnattr_init(&attributes);
        sigset_t to_default;
        sigemptyset(&to_default);
        for (const int ignored : {SIGPIPE, SIGXFSZ}) sigaddset(&to_default, ignored);
        posix_spawnattr_setsigdefault(&attributes, &to_default);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
        const char* const arguments[] = {"sh", "-c", command.c_str(), nullptr};
        const int error =
            posix_spawn(&pid_, "/bin/sh", &files, &attributes, const_cast<char* const*>(arguments), environ);
        posix_spawnattr_destroy(&attributes);
        posix_spawn_file_actions_destroy(&files);
        RG_CHECK(error == 0, "command: cannot start /bin/sh: ", std::strerror(error));
        out.close_write();
        err.close_write();
    }
    ~ChildProcess() {
        if (ended_) return;
        kill_tree(pid_);
        while (::waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {}
    }
    ChildProcess(const ChildProcess&) = delete;
    ChildProcess& operator=(const ChildProcess&) = delete;

    bool ended() {
        if (ended_) return true;
        const pid_t pid = ::waitpid(pid_, &status_, WNOHANG);
        ended_ = pid == pid_ || (pid < 0 && errno != EINTR);
        // If SIGCHLD is ignored, the status of a child cannot be read.
        RG_CHECK(pid >= 0 || errno == EINTR,
                 "command: cannot read the exit status of the command: ", std::strerror(errno));
        return ended_;
    }
    int status() const { return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_); }
    std::string describe_end() const {
        return WIFEXITED(status_) ? cat("exit status ", WEXITSTATUS(status_))
                                  : cat("ended by signal ", WTERMSIG(status_), " (", strsignal(WTERMSIG(status_)), ")");
    }

private:
    pid_t pid_ = -1;
    int status_ = 0;
    bool ended_ = false;
};

/// The last line of tar after any error; those before it tell the reason.
constexpr std::string_view kEndOfTar = "tar: Exiting with failure status due to previous errors";

/// Returns ": LINE" with the last line that is neither empty nor kEndOfTar, or "".
std::string last_line(std::string_view text) {
    const size_t last = text.find_last_not_of(" \t\r\n");
    if (last == text.npos) return "";
    const size_t before = text.find_last_of("\r\n", last), begin = before == text.npos ? 0 : before + 1;
    const std::string_view line = text.substr(begin, last + 1 - begin);
    return line == kEndOfTar ? last_line(text.substr(0, begin)) : ": " + excerpt(line);
}

} // namespace

void run_command(const std::string& command, const std::function<void(int64_t lines, int64_t errors)>& poll) {
    RG_CHECK(command.find('\0') == std::string::npos, "command: expected a text without zero bytes, got one");
    OutputPipe out, err;
    ChildProcess child(command, out, err);
    int64_t lines = 0, errors = 0;
    std::string error_text;
    size_t error_bytes = 0;
    const auto read_errors = [&] {
        const size_t before = error_text.size();
        if (!err.read(error_text)) return false;
        error_bytes += error_text.size() - before;
        errors += std::count(error_text.begin() + std::ptrdiff_t(before), error_text.end(), '\n');
        if (error_text.size() > kErrorBytes) error_text.erase(0, error_text.size() - kErrorBytes);
        RG_CHECK(error_bytes <= kMaxErrors, "command: expected at most ", kMaxErrors,
                 " bytes on standard error, got more", last_line(error_text));
        return true;
    };
    // Does not wait for the end of standard error: a background job may hold it open.
    for (std::string text; out.open() || !child.ended(); text.clear()) {
        pollfd both[] = {out.for_poll(), err.for_poll()};
        ::poll(both, 2, kPollMs);
        check_stop();
        out.read(text), read_errors();
        lines += std::count(text.begin(), text.end(), '\n');
        if (poll) poll(lines, errors);
    }
    // A background job may keep writing to standard error, so this reads at most about one pipe's capacity.
    for (const size_t end = error_bytes + err.capacity(); error_bytes < end && read_errors();) {}
    if (poll) poll(lines, errors);
    check_stop(); // the command may have failed because Ctrl-C in a terminal also ends it
    RG_CHECK(child.status() == 0, child.describe_end(), last_line(error_text));
}

std::string excerpt(std::string_view text) {
    return printable(text.substr(0, kLineBytes)) + (text.size() > kLineBytes ? "..." : "");
}

} // namespace rg::data
