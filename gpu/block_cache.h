// A cache of device memory blocks. Allocating and freeing device memory may wait for the device, so the cache keeps
// blocks that are given back, and reuses them for requests of the same size. If an allocation fails, all kept blocks
// are freed and the allocation is tried once more.
#pragma once

#include <cstddef>
#include <map>

namespace rg::gpu {

class DeviceBlockCache {
public:
    /// allocate(bytes) returns new memory, or null if not enough is left. free(memory) frees it.
    DeviceBlockCache(void* (*allocate)(size_t), void (*free)(void*)) : allocate_(allocate), free_(free) {}
    ~DeviceBlockCache() { free_unused(); }
    DeviceBlockCache(const DeviceBlockCache&) = delete;
    DeviceBlockCache& operator=(const DeviceBlockCache&) = delete;

    /// Returns a block of exactly `bytes` bytes, or null if the device has not enough memory left.
    void* take(size_t bytes) {
        void* memory = nullptr;
        if (const auto block = unused_.find(bytes); block != unused_.end()) {
            memory = block->second;
            unused_.erase(block);
        } else if (memory = allocate_(bytes); !memory) {
            free_unused();
            memory = allocate_(bytes);
        }
        if (memory) sizes_in_use_[memory] = bytes, bytes_taken_ += bytes;
        return memory;
    }
    /// Keeps a block for later calls of take(). `memory` must be a block that take() has returned and that is still in
    /// use.
    void give_back(void* memory) noexcept {
        const auto block = sizes_in_use_.find(memory);
        bytes_taken_ -= block->second;
        unused_.emplace(block->second, memory);
        sizes_in_use_.erase(block);
    }
    /// Returns the number of bytes in all blocks that are in use.
    size_t bytes_taken() const { return bytes_taken_; }

private:
    void free_unused() {
        for (const auto& [bytes, memory] : unused_) free_(memory);
        unused_.clear();
    }
    void* (*allocate_)(size_t);
    void (*free_)(void*);
    std::multimap<size_t, void*> unused_; // kept blocks by their size in bytes
    std::map<void*, size_t> sizes_in_use_;
    size_t bytes_taken_ = 0;
};

} // namespace rg::gpu
