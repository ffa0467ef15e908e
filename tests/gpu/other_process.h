// Runs a test case in two processes, and sums vectors there that lie in the memories of two devices.
#pragma once

#include "core/device.h"
#include "tests/temp_dir.h"

#include <array>
#include <cstring>
#include <doctest/doctest.h>
#include <spawn.h>
#include <string>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

extern "C" char** environ;

namespace rg {

/// The other one of two processes that run the same test case. A socket connects them.
class OtherProcess {
public:
    /// Starts this program again, for cases whose names match the pattern. There, connects to the first process.
    explicit OtherProcess(const std::string& pattern) {
        if (const char* const inherited = std::getenv("RG_TEST_SOCKET")) {
            socket_ = std::stoi(inherited);
            return;
        }
        int pair[2];
        RG_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0, "socketpair");
        socket_ = pair[0];
        const timeval limit{100, 0}; // no step of the other process takes so long
        ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        ::setenv("RG_TEST_SOCKET", std::to_string(pair[1]).c_str(), 1);
        std::string program = "/proc/self/exe", cases = "-tc=" + pattern, quiet = "--minimal";
        char* const arguments[] = {program.data(), cases.data(), quiet.data(), nullptr};
        const int error = ::posix_spawn(&pid_, program.c_str(), nullptr, nullptr, arguments, environ);
        ::unsetenv("RG_TEST_SOCKET");
        ::close(pair[1]);
        RG_CHECK(error == 0, "posix_spawn: ", std::strerror(error));
    }
    /// The first process checks that the other one has passed.
    ~OtherProcess() {
        ::close(socket_);
        int status = 0;
        if (is_first()) CHECK((::waitpid(pid_, &status, 0) == pid_ && status == 0));
    }
    OtherProcess(const OtherProcess&) = delete;
    OtherProcess& operator=(const OtherProcess&) = delete;

    bool is_first() const { return pid_ != 0; }
    /// Sends a text, and returns the one that the other process sends.
    std::string exchange(const std::string& text) {
        std::array<char, 4096> buffer{};
        RG_CHECK(::send(socket_, text.data(), text.size(), MSG_NOSIGNAL) == ssize_t(text.size()), "send");
        const ssize_t size = ::recv(socket_, buffer.data(), buffer.size(), 0);
        RG_CHECK(size > 0, "expected a text of the other process, got none; has it failed?");
        return {buffer.data(), size_t(size)};
    }

private:
    int socket_ = -1;
    pid_t pid_ = 0;
};

/// Each process sums half of two vectors, one in the memory of each process, and writes the sum to both.
inline void sum_between_processes(Device& device, OtherProcess& other) {
    constexpr size_t kCount = 1'000'003, kHalf = 500'000;
    const auto value = [](bool first, size_t i) { return float(first ? i % 1021 + 1 : i % 127 * 2048); };
    std::vector<float> values(kCount);
    for (size_t i = 0; i < kCount; ++i) values[i] = value(other.is_first(), i);
    auto* const own = static_cast<std::byte*>(device.allocate(kCount * sizeof(float)));
    device.upload(own, values.data(), kCount * sizeof(float));
    device.synchronize();
    {
        const std::shared_ptr<std::byte> theirs = device.open_shared(other.exchange(device.share(own)));
        std::array vectors{other.is_first() ? own : theirs.get(), other.is_first() ? theirs.get() : own};
        for (std::byte*& vector : vectors) vector += other.is_first() ? 0 : kHalf * sizeof(float);
        device.sum(vectors, vectors, other.is_first() ? kHalf : kCount - kHalf);
        other.exchange("summed");
    }
    device.download(values.data(), own, kCount * sizeof(float));
    other.exchange("unmapped"); // before the memory is released
    device.release(own);
    size_t right = 0;
    for (size_t i = 0; i < kCount; ++i) right += values[i] == value(true, i) + value(false, i);
    CHECK(right == kCount);
    MESSAGE("sums between processes: ", right, " of ", kCount, " values are right");
}

} // namespace rg
