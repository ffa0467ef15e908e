// Blocks of a device's memory, kept by size when they are given back and given out again: to make and to drop one waits
// for the device. Where no new one is to be had, those that are kept make way for it.
#pragma once

#include <cstddef>
#include <map>

namespace rg::gpu {

class BlockCache {
public:
    /// make: memory of that many bytes, or null: there is none left; drop: returns it.
    BlockCache(void* (*make)(size_t), void (*drop)(void*)) : make_(make), drop_(drop) {}
    ~BlockCache() { drop_kept(); }
    BlockCache(const BlockCache&) = delete;
    BlockCache& operator=(const BlockCache&) = delete;

    /// Null: there is none left, and none kept.
    void* take(size_t bytes) {
        void* memory = nullptr;
        if (const auto found = kept_.find(bytes); found != kept_.end()) {
            memory = found->second;
            kept_.erase(found);
        } else if (memory = make_(bytes); !memory) {
            drop_kept();
            memory = make_(bytes);
        }
        if (memory) sizes_[memory] = bytes, bytes_taken_ += bytes;
        return memory;
    }
    void give_back(void* memory) noexcept {
        const auto found = sizes_.find(memory);
        bytes_taken_ -= found->second;
        kept_.emplace(found->second, memory);
        sizes_.erase(found);
    }
    size_t bytes_taken() const { return bytes_taken_; }

private:
    void drop_kept() {
        for (const auto& [bytes, memory] : kept_) drop_(memory);
        kept_.clear();
    }
    void* (*make_)(size_t);
    void (*drop_)(void*);
    std::multimap<size_t, void*> kept_;
    std::map<void*, size_t> sizes_; // of what is taken
    size_t bytes_taken_ = 0;
};

} // namespace rg::gpu
