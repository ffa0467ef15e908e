// posix_spawn and not fork: the parent may be large, have threads, and hold MPI's connections, none of which the child
// is to see; of our descriptors it gets three. Both of its outputs are read as they come, so that neither can fill up
// and stop it.
#include "data/pipe.h"

#include "core/stop.h"
#include "core/text.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
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

constexpr size_t kStepBytes = 1 << 16;  // read at a time
constexpr size_t kErrorBytes = 4096;    // kept of standard error, of which the last line is quoted, and of the output
constexpr size_t kLineBytes = 300;      // quoted at most
constexpr size_t kMaxErrors = 64 << 20; // of standard error at most: progress bars write less
constexpr int kPollMs = 20;             // how soon an end without a word is seen
constexpr int kLowestOther = 3;         // the first descriptor that is not one of the standard three

/// One output of the child.
class Output {
public:
    Output() {
        int ends[2];
        RG_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "pipe: cannot open: ", std::strerror(errno));
        read_ = ends[0], write_ = ends[1];
        ::fcntl(read_, F_SETFL, O_NONBLOCK);
    }
    ~Output() { close_write(), close_read(); }
    Output(const Output&) = delete;
    Output& operator=(const Output&) = delete;

    int read_end() const { return read_; }
    int write_end() const { return write_; }
    pollfd for_poll() const { return {read_, POLLIN, 0}; } // poll passes over -1
    bool open() const { return read_ >= 0; }
    size_t capacity() const { return size_t(std::max(::fcntl(read_, F_GETPIPE_SZ), 0)); } // 0 if it is closed
    void close_write() { close(write_); }
    void close_read() { close(read_); }

    /// Appends what is there, at most kStepBytes; closes at the end. False if nothing came.
    bool read(std::string& to) {
        if (!open()) return false;
        const size_t before = to.size();
        to.resize(before + kStepBytes);
        ssize_t n;
        do n = ::read(read_, to.data() + before, kStepBytes);
        while (n < 0 && errno == EINTR);
        to.resize(before + size_t(std::max<ssize_t>(n, 0)));
        if (n == 0 || (n < 0 && errno != EAGAIN)) close_read();
        return n > 0;
    }

private:
    static void close(int& fd) {
        if (fd >= 0) ::close(std::exchange(fd, -1));
    }
    int read_ = -1, write_ = -1;
};

/// Ends a process and its descendants. It is stopped first, so that it starts no more meanwhile. A process group would
/// be simpler, but ssh in it could not ask for a password at the terminal, and Ctrl-C there would not reach it.
void kill_tree(pid_t pid) {
    ::kill(pid, SIGSTOP);
    std::ifstream children(cat("/proc/", pid, "/task/", pid, "/children"));
    for (pid_t child; children >> child;) kill_tree(child);
    ::kill(pid, SIGKILL);
}

/// Ends all other processes that hold the pipe open. A job in the background becomes a child of init when its shell
/// ends, so kill_tree() does not find it.
void kill_holders(int read_end) {
    namespace fs = std::filesystem;
    std::error_code gone; // any process may end meanwhile
    const fs::path pipe = fs::read_symlink(cat("/proc/self/fd/", read_end), gone);
    if (pipe.empty()) return;
    for (fs::directory_iterator process("/proc", gone), none; process != none; process.increment(gone)) {
        const pid_t pid = std::atoi(process->path().filename().c_str()); // 0 if it is not a process
        if (pid == 0 || pid == ::getpid()) continue;
        for (fs::directory_iterator fd(process->path() / "fd", gone); fd != none; fd.increment(gone))
            if (fs::read_symlink(fd->path(), gone) == pipe) ::kill(pid, SIGKILL);
    }
}

class Child {
public:
    Child(const std::string& command, Output& out, Output& err) : out_(out), err_(err) {
        posix_spawn_file_actions_t files;
        posix_spawn_file_actions_init(&files);
        posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
        posix_spawn_file_actions_adddup2(&files, out.write_end(), 1);
        posix_spawn_file_actions_adddup2(&files, err.write_end(), 2);
        posix_spawn_file_actions_addclosefrom_np(&files, kLowestOther);
        // A process that ignores SIGPIPE would hand that down, and nothing would end a writer that we have left.
        posix_spawnattr_t attributes;
        posix_spawnattr_init(&attributes);
        sigset_t to_default;
        sigemptyset(&to_default);
        sigaddset(&to_default, SIGPIPE);
        posix_spawnattr_setsigdefault(&attributes, &to_default);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
        const char* const arguments[] = {"sh", "-c", command.c_str(), nullptr};
        const int error =
            posix_spawn(&pid_, "/bin/sh", &files, &attributes, const_cast<char* const*>(arguments), environ);
        posix_spawnattr_destroy(&attributes);
        posix_spawn_file_actions_destroy(&files);
        RG_CHECK(error == 0, "pipe: cannot start /bin/sh: ", std::strerror(error));
        out.close_write();
        err.close_write();
    }
    ~Child() {
        if (ended_) return;
        kill_tree(pid_);
        for (const Output* output : {&out_, &err_}) kill_holders(output->read_end());
        while (::waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {}
    }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

    bool ended() {
        if (ended_) return true;
        const pid_t pid = ::waitpid(pid_, &status_, WNOHANG);
        ended_ = pid == pid_ || (pid < 0 && errno != EINTR);
        // Where SIGCHLD is ignored nobody can know how a child ended.
        RG_CHECK(pid >= 0 || errno == EINTR, "pipe: cannot learn how the command ended: ", std::strerror(errno));
        return ended_;
    }
    int status() const { return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_); }
    std::string how() const {
        return WIFEXITED(status_) ? cat("exit status ", WEXITSTATUS(status_))
                                  : cat("ended by signal ", WTERMSIG(status_), " (", strsignal(WTERMSIG(status_)), ")");
    }

private:
    const Output &out_, &err_;
    pid_t pid_ = -1;
    int status_ = 0;
    bool ended_ = false;
};

/// ": LINE" with the last line that is not empty, or nothing.
std::string last_line(const std::string& text) {
    const size_t last = text.find_last_not_of(" \t\r\n");
    if (last == std::string::npos) return "";
    const size_t before = text.find_last_of("\r\n", last), begin = before == std::string::npos ? 0 : before + 1;
    return ": " + excerpt(text.substr(begin, last + 1 - begin));
}

} // namespace

std::string read_pipe(const std::string& command, size_t limit, double silence_s, double total_s) {
    RG_CHECK(command.find('\0') == std::string::npos, "pipe: the command has a zero byte in it");
    using Clock = std::chrono::steady_clock;
    Output out, err;
    Child child(command, out, err);
    std::string bytes, words;
    size_t errors = 0; // bytes
    const auto read_errors = [&] {
        const size_t before = words.size();
        if (!err.read(words)) return false;
        errors += words.size() - before;
        if (words.size() > kErrorBytes) words.erase(0, words.size() - kErrorBytes);
        RG_CHECK(errors <= kMaxErrors, "pipe: expected at most ", kMaxErrors, " bytes on standard error, got more",
                 last_line(words));
        return true;
    };
    const auto seconds_since = [](Clock::time_point time) {
        return std::chrono::duration<double>(Clock::now() - time).count();
    };
    const Clock::time_point begin = Clock::now();
    Clock::time_point heard = begin;
    // Something in the background may hold standard error open for as long as it likes; standard output is data.
    while (out.open() || !child.ended()) {
        pollfd both[] = {out.for_poll(), err.for_poll()};
        ::poll(both, 2, kPollMs);
        check_stop();
        const bool more = out.read(bytes), said = read_errors();
        RG_CHECK(bytes.size() <= limit, "pipe: expected at most ", limit, " bytes, got more");
        if (more || said) heard = Clock::now();
        RG_CHECK(seconds_since(heard) < silence_s, "pipe: silent for ", silence_s, " s after ", bytes.size(), " bytes",
                 last_line(words));
        RG_CHECK(seconds_since(begin) < total_s, "pipe: expected an end within ", total_s, " s, got ", bytes.size(),
                 " bytes and no end", last_line(words));
    }
    // A job in the background may go on writing: only the contents of the pipe are read.
    for (const size_t end = errors + err.capacity(); errors < end && read_errors();) {}
    if (child.status() != 0)
        throw PipeError(cat(child.how(), " after ", bytes.size(), " bytes", last_line(words)), child.status(),
                        bytes.substr(0, kErrorBytes));
    return bytes;
}

std::string excerpt(std::string_view text) {
    return printable(text.substr(0, kLineBytes)) + (text.size() > kLineBytes ? "..." : "");
}

std::string shell_word(const std::string& text) {
    std::string word = "'";
    for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return word + "'";
}

} // namespace rg::data
