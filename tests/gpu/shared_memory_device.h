// Defines a device whose memory other processes can map, as they can map that of a GPU.
#pragma once

#include "core/base.h"

#include <cstring>
#include <fcntl.h>
#include <map>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

namespace rg {

/// A device like Base, a HostDevice. Each block of its memory is a file of its own, which has no name.
template <class Base>
class InSharedMemory : public Base {
public:
    void* allocate(size_t bytes) override {
        const Block block{::memfd_create("device memory", 0), std::max<size_t>(bytes, 1)};
        RG_CHECK(block.file >= 0 && ::ftruncate(block.file, off_t(block.bytes)) == 0, "memfd_create");
        void* const memory = map(block);
        std::memset(memory, 0xFF, bytes); // floats are NaN until they are written
        blocks_[memory] = block;
        return memory;
    }
    void release(void* memory) noexcept override {
        if (!memory) return;
        Base::synchronize();
        const Block block = blocks_.extract(memory).mapped();
        ::munmap(memory, block.bytes);
        ::close(block.file);
    }
    std::string share(const void* memory) override {
        const Block& block = blocks_.at(const_cast<void*>(memory));
        return cat("/proc/", ::getpid(), "/fd/", block.file, " ", block.bytes);
    }
    std::shared_ptr<std::byte> open_shared(const std::string& handle) override {
        const size_t end = handle.find(' '), bytes = std::stoull(handle.substr(end));
        const int file = ::open(handle.substr(0, end).c_str(), O_RDWR | O_CLOEXEC);
        RG_CHECK(file >= 0, "expected shared memory, got none: ", handle);
        auto* const memory = static_cast<std::byte*>(map({file, bytes}));
        ::close(file);
        return {memory, [bytes](std::byte* mapped) { ::munmap(mapped, bytes); }};
    }

private:
    struct Block {
        int file;
        size_t bytes;
    };
    static void* map(const Block& block) {
        void* const memory = ::mmap(nullptr, block.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, block.file, 0);
        RG_CHECK(memory != MAP_FAILED, "mmap");
        return memory;
    }
    std::map<void*, Block> blocks_;
};

} // namespace rg
