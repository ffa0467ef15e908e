// Owns a file descriptor.
#pragma once

#include <unistd.h>
#include <utility>

namespace rg {

/// Closes its file descriptor at the end of its life. A negative one stands for none. To close it earlier and check the
/// result, call ::close(release()).
class Descriptor {
public:
    explicit Descriptor(int fd = -1) : fd_(fd) {}
    Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }
    int get() const { return fd_; }
    int release() { return std::exchange(fd_, -1); }

private:
    int fd_;
};

} // namespace rg
